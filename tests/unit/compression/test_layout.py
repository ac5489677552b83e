import pytest

from shoal.compression import BodyLayout, CodecSpec, SpecMismatchError
from shoal.compression.threads import CHUNKS_PER_PIECE, Piece, pieces_of, run_pieces

SPEC = CodecSpec(chunk_size=16, k_per_chunk=4)


def test_offsets_and_chunk_numbers_run_through_all_tensors():
    layout = BodyLayout(SPEC, [40, 0, 16])
    full, short = SPEC.chunk_bytes(16), SPEC.chunk_bytes(8)
    assert layout.num_chunks == 4
    assert layout.chunk_starts == (0, 3, 3, 4)
    assert layout.tensor_offsets == (0, 2 * full + short, 2 * full + short, 3 * full + short)
    assert layout.body_bytes == layout.tensor_offsets[-1]
    assert [layout.tensors[0].chunk_len(c) for c in range(3)] == [16, 16, 8]


@pytest.mark.parametrize("sizes", [[], [0], [0, 0], [-1], [4.0]])
def test_sizes_without_meaning_are_refused(sizes):
    with pytest.raises(SpecMismatchError):
        BodyLayout(SPEC, sizes)


def test_layouts_are_equal_if_spec_and_sizes_are():
    layout = BodyLayout(SPEC, [5, 6])
    assert layout == BodyLayout(SPEC, (5, 6))
    assert hash(layout) == hash(BodyLayout(SPEC, (5, 6)))
    assert layout != BodyLayout(SPEC, [5, 7])
    assert layout != (5, 6)


def test_pieces_hold_every_chunk_once():
    layout = BodyLayout(SPEC, [16 * (2 * CHUNKS_PER_PIECE + 5) - 3, 0, 7])
    pieces = pieces_of(layout)
    chunks = [(p.tensor_index, c) for p in pieces for c in range(p.first, p.last)]
    assert len(pieces) == 4
    assert chunks == [(t, c) for t in range(3) for c in range(layout.tensors[t].num_chunks)]


def test_results_come_back_in_the_order_of_the_pieces():
    pieces = [Piece(0, i, i + 1) for i in range(20)]
    assert run_pieces(lambda piece: piece.first, pieces, 3) == list(range(20))


def test_less_than_one_thread_is_refused():
    with pytest.raises(SpecMismatchError):
        run_pieces(lambda piece: piece, [Piece(0, 0, 1)], 0)
