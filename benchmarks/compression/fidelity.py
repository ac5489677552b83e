"""How well each quantiser represents real pseudo-gradients.

A byte-level causal transformer is trained on text by two peers, 15 AdamW steps a round, as in
SparseLoCo: top-k of the accumulator, error feedback, mean of what both sent. All quantisers are
measured on the same accumulators; the run goes on with two bits.
"""

import lzma
import sysconfig
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from shoal.compression import BodyLayout, CodecSpec, ErrorFeedback, check_body, dequantize

DEMO_TEXT = Path("configs/demo/kjv.txt.xz")
TEXT_BYTES = 2_000_000
WIDTH, NUM_LAYERS, CONTEXT, BATCH = 192, 3, 96, 16
NUM_PEERS, INNER_STEPS, NUM_ROUNDS, FIRST_MEASURED = 2, 15, 9, 4
DECAY = 0.95

Arrays = list[npt.NDArray[np.float32]]

GRID = "published grid: sign x mean of the tensor"
ONE_BIT = "1 bit: sign x mean of the chunk"
TWO_BITS = "2 bits, two scales per chunk, least squares"
QUANTISERS = (GRID, ONE_BIT, TWO_BITS)


class TinyTransformer(nn.Module):
    """About 1.4 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, NUM_LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits, (batch, context, 256) float32, of (batch, context) int64 bytes."""
        hidden = self.tokens(tokens) + self.places.weight
        logits: torch.Tensor = self.head(self.layers(hidden, mask=self.mask, is_causal=True))
        return logits


class Measurements:
    """Squared error and products of one quantiser, over all rounds measured."""

    def __init__(self) -> None:
        self.error = self.square = self.product = 0.0

    def add(self, kept: npt.NDArray[np.float32], sent: npt.NDArray[np.float32]) -> None:
        """Take one tensor's kept values and what is sent for them."""
        v, q = kept.astype(np.float64), sent.astype(np.float64)
        self.error += float(((v - q) ** 2).sum())
        self.square += float((v**2).sum())
        self.product += float((v * q).sum())

    def row(self, name: str) -> str:
        """Markdown."""
        return f"| {name} | {self.error / self.square:.4f} | {self.product / self.square:.3f} |"


def training_text() -> torch.Tensor:
    """Some megabytes of text, (n,) int64: the demo's if it is there, else Python's own sources."""
    if DEMO_TEXT.exists():
        raw = lzma.decompress(DEMO_TEXT.read_bytes())[:TEXT_BYTES]
    else:
        sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        raw = b"".join(path.read_bytes() for path in sources)[:TEXT_BYTES]
    return torch.tensor(list(raw))


def train(
    model: TinyTransformer,
    optimizer: torch.optim.Optimizer,
    text: torch.Tensor,
    generator: torch.Generator,
) -> float:
    """Take the inner steps of one round and return the last loss."""
    for _ in range(INNER_STEPS):
        starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=generator)
        batch = torch.stack([text[s : s + CONTEXT + 1] for s in starts.tolist()])
        logits = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.reshape(-1, 256), batch[:, 1:].reshape(-1))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return loss.item()


def flat_parameters(model: TinyTransformer) -> Arrays:
    """Copies, one (size,) float32 array for each parameter."""
    return [p.detach().reshape(-1).numpy().copy() for p in model.parameters()]


def load_parameters(model: TinyTransformer, arrays: Arrays) -> None:
    """Set all parameters."""
    with torch.no_grad():
        for parameter, array in zip(model.parameters(), arrays, strict=True):
            parameter.copy_(torch.from_numpy(array).view_as(parameter))


def measure(
    feedback: ErrorFeedback, body: bytes, layout: BodyLayout, results: dict[str, Measurements]
) -> Arrays:
    """Compare the quantisers on one staged accumulator; returns the sent values of two bits."""
    one_bit_layout = BodyLayout(CodecSpec(value_bits=1), layout.sizes)
    one_bit = ErrorFeedback(one_bit_layout, 0.0)
    two = dequantize(check_body(body, layout))
    one = dequantize(check_body(one_bit.stage(feedback.residuals).body, one_bit_layout))
    sent = [np.zeros(size, dtype=np.float32) for size in layout.sizes]
    for t, (residual, (positions, values)) in enumerate(zip(feedback.residuals, two, strict=True)):
        kept = residual[positions]
        sent[t][positions] = values
        results[TWO_BITS].add(kept, values)
        if positions.size:
            grid = np.sign(kept) * np.abs(kept).mean()
            results[GRID].add(kept, grid)
        results[ONE_BIT].add(residual[one[t][0]], one[t][1])
    return sent


class Peer:
    """A model with its optimiser, data and residual.

    Args:
        seed: of the data.
        layout: of the model's parameters.
    """

    def __init__(self, seed: int, layout: BodyLayout) -> None:
        self.model = TinyTransformer()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1
        )
        self.generator = torch.Generator().manual_seed(seed)
        self.feedback = ErrorFeedback(layout, DECAY)
        self.layout = layout

    def run_round(
        self, base: Arrays, text: torch.Tensor, results: dict[str, Measurements]
    ) -> tuple[float, Arrays]:
        """Train from the base parameters; returns the last loss and what is sent."""
        load_parameters(self.model, base)
        loss = train(self.model, self.optimizer, text, self.generator)
        gradients = [b - p for b, p in zip(base, flat_parameters(self.model), strict=True)]
        body = self.feedback.stage(gradients).body
        sent = measure(self.feedback, body, self.layout, results)
        self.feedback.commit()
        return loss, sent


def print_fidelity() -> None:
    """Train, and print a row for each quantiser."""
    torch.manual_seed(0)
    torch.set_num_threads(2)
    text = training_text()
    base = flat_parameters(TinyTransformer())
    layout = BodyLayout(CodecSpec(), [array.size for array in base])
    peers = [Peer(seed, layout) for seed in range(NUM_PEERS)]
    results, warm_up_results = ({name: Measurements() for name in QUANTISERS} for _ in range(2))
    losses = []
    for round_id in range(1, NUM_ROUNDS + 1):
        chosen = results if round_id >= FIRST_MEASURED else warm_up_results
        rounds = [peer.run_round(base, text, chosen) for peer in peers]
        losses.append(sum(loss for loss, _ in rounds) / NUM_PEERS)
        for t, array in enumerate(base):
            array -= np.mean([sent[t] for _, sent in rounds], axis=0)  # noqa: PLW2901 - in place
    print(
        f"Real pseudo-gradients: {sum(layout.sizes):,} parameters, {NUM_PEERS} peers, "
        f"H = {INNER_STEPS}, rounds {FIRST_MEASURED} to {NUM_ROUNDS}, error feedback, "
        f"loss {losses[0]:.2f} to {losses[-1]:.2f}:\n"
    )
    print("| quantiser | relative squared error | mean of q v / v^2 |\n|---|---|---|")
    for name, result in results.items():
        print(result.row(name))
