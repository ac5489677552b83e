// The page: keeps the last state, takes live events, draws. Everything that comes from a peer is
// text: it reaches the document through textContent and title only.

import { barRows, empty, lineChart, make, scaleRow } from "/static/charts.js";

const MAX_POINTS = 400; // as the server's
const SILENCE_MS = 15000; // three heartbeats
const $ = (id) => document.getElementById(id);

let state = null;
let chosen = null; // name of the node that is shown
let clockOffsetS = 0;
let heardAtMs = 0;
let source = null;

// ---------------------------------------------------------------- figures as people read them

const isNumber = (x) => typeof x === "number" && Number.isFinite(x);

function scaled(value, units) {
  const [size, unit] = units.find(([s]) => Math.abs(value) >= s) ?? units[units.length - 1];
  const x = value / size;
  return `${x.toFixed(Math.abs(x) >= 100 || unit === "B" ? 0 : Math.abs(x) >= 10 ? 1 : 2)} ${unit}`;
}
const bytes = (x) => (isNumber(x) ? scaled(x, [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]]) : "-");
const rate = (x) => (isNumber(x) ? `${bytes(x)}/s` : "-");
function seconds(x) {
  if (!isNumber(x)) return "-";
  if (x >= 5400) return `${(x / 3600).toFixed(1)} h`;
  if (x >= 120) return `${(x / 60).toFixed(1)} min`;
  if (x === 0) return "0 s";
  return scaled(x, [[1, "s"], [1e-3, "ms"], [1e-6, "\u00b5s"]]);
}
const percent = (x) => (isNumber(x) ? `${(100 * x).toFixed(x >= 0.1 ? 1 : 2)} %` : "-");
const loss = (x) => (isNumber(x) ? x.toFixed(3) : "-");
const count = (x) => (isNumber(x) ? x.toLocaleString("en-US") : "-");
const short = (id) => (id.length > 12 ? `\u2026${id.slice(-6)}` : id || "-");
const axis = (format) => (x) => format(x).replace(/\.00? /, " ").replace(/^0 .*$/, "0");

// ---------------------------------------------------------------- drawing

function node() {
  return state.nodes.find((n) => n.name === chosen) ?? state.nodes[0];
}

function drawAll() {
  if (state === null || state.nodes.length === 0) return;
  const n = node();
  drawHead(n);
  drawTiles(n);
  drawTimeline(n);
  drawCharts(n);
  drawPeers(n);
  drawRefusals(n);
}

function drawHead(n) {
  $("run-name").textContent = n.run_name || (n.run_id ? `run ${n.run_id.slice(0, 12)}` : "Waiting for the node");
  $("who").textContent = n.peer ? `${n.role} ${short(n.peer)}, run ${n.run_id.slice(0, 12)}` : "";
  $("who").title = n.peer;
  document.title = `${n.now.round_id ? `round ${n.now.round_id}, ` : ""}${n.run_name || "Shoal"}`;
  $("chooser").hidden = state.nodes.length < 2;
  const names = state.nodes.map((one) => one.name);
  if ($("node-select").options.length !== names.length) {
    $("node-select").replaceChildren(...names.map((name) => new Option(name, name)));
  }
  $("node-select").value = n.name;
}

function setTile(id, text, small, more) {
  $(id).textContent = text;
  if (small) $(id).append(make("small", "", ` ${small}`));
  $(`${id}-more`)?.replaceChildren(more || "\u00a0");
}

function drawTiles(n) {
  const last = n.rounds[n.rounds.length - 1];
  const done = last ? last.round_id : 0;
  setTile("t-round", n.now.round_id ? String(n.now.round_id) : "-", n.num_rounds ? `of ${count(n.num_rounds)}` : "");
  const steps = n.now.phase === "training" && n.inner_steps ? `, step ${n.now.step} of ${n.inner_steps}` : "";
  $("t-phase").textContent = n.now.phase + steps;
  $("t-progress").hidden = !n.num_rounds;
  if (n.num_rounds) $("t-progress").firstElementChild.style.width = `${Math.min(100, (100 * done) / n.num_rounds)}%`;

  const key = n.role === "validator" ? "held_out_loss" : "mean_loss";
  const losses = n.rounds.map((r) => r[key]).filter(isNumber);
  $("t-loss-name").textContent = key === "mean_loss" ? "Training loss" : "Held-out loss";
  $("t-loss").textContent = losses.length ? loss(losses[losses.length - 1]) : "-";
  const live = isNumber(n.now.step_loss) && n.now.phase === "training" ? `, this step ${loss(n.now.step_loss)}` : "";
  $("t-loss-from").textContent = losses.length > 1 ? `from ${loss(losses[0])}${live}` : live.slice(2) || "\u00a0";

  const latest = [...n.rounds].reverse().find((r) => isNumber(r.gather_median_s));
  setTile("t-gather", seconds(latest?.gather_median_s), latest ? "median" : "",
    latest ? `worst ${seconds(latest.gather_worst_s)}, round ${latest.round_id}` : "");
  setTile("t-share", percent(last?.communication_ratio), last ? "exposed" : "",
    last ? `all rounds ${percent(n.totals.communication_ratio)}` : "");
  setTile("t-bytes", bytes(n.totals.uploaded_bytes + n.totals.downloaded_bytes), "",
    `${bytes(n.totals.uploaded_bytes)} up, ${bytes(n.totals.downloaded_bytes)} down${month(n)}`);
  drawState(n, last);
}

// Only where there is a limit: what of it is used.
function month(n) {
  const use = n.bandwidth;
  if (!use) return "";
  const parts = [
    ["up", use.uploaded_bytes, use.upload_quota_bytes, use.upload_cap_bytes_per_s],
    ["down", use.downloaded_bytes, use.download_quota_bytes, use.download_cap_bytes_per_s],
  ].flatMap(([word, used, quota, cap]) => [
    ...(quota ? [`${bytes(used)} of this month's ${bytes(quota)} ${word}`] : []),
    ...(cap ? [`at most ${rate(cap)} ${word}`] : []),
  ]);
  return parts.map((part) => `; ${part}`).join("");
}

function drawState(n, last) {
  const agreement = state.agreement;
  setTile("t-state", last ? last.state_hash.slice(0, 12) : "-");
  $("t-state").title = last ? last.state_hash : "";
  const more = $("t-state-more");
  if (agreement && agreement.of > 1) {
    const same = agreement.equal === agreement.of;
    more.replaceChildren(make("span", same ? "good" : "bad", `equal on ${agreement.equal} of ${agreement.of}`));
    more.append(`, round ${agreement.round_id}`);
  } else {
    more.textContent = last ? `after round ${last.round_id}` : "\u00a0";
  }
  $("f-hash").textContent = last ? `state after round ${last.round_id}: ${last.state_hash}` : "";
}

const OWN_PHASES = [["train_s", "train"], ["stage_s", "stage"], ["upload_s", "upload"], ["wait_s", "wait"], ["apply_s", "apply"]];

function ownSegments(n, t, endS) {
  if (t.closed_s !== null) {
    let at = 0;
    return OWN_PHASES.map(([name, look]) => {
      const from = at;
      at += t.phases[name];
      return { from, to: at, look, title: `${look} ${seconds(t.phases[name])}` };
    }).filter((s) => s.to > s.from);
  }
  if (n.role === "validator") return [{ from: 0, to: endS, look: "wait", title: "gathering" }];
  const staged = t.staged_s ?? endS;
  const published = t.published_s ?? endS;
  return [
    { from: 0, to: staged, look: "train", title: "training" },
    ...(t.staged_s === null ? [] : [{ from: staged, to: published, look: "upload", title: "uploading" }]),
    ...(t.published_s === null ? [] : [{ from: published, to: endS, look: "wait", title: "waiting for the others" }]),
  ];
}

function arrivalRow(arrival, slowest, endS) {
  const row = { name: short(arrival.peer), title: arrival.peer, segments: [], fact: "" };
  if (arrival.code) {
    row.segments.push({ from: arrival.rejected_s, to: arrival.rejected_s, look: "refused", title: arrival.code });
    row.fact = `refused at ${seconds(arrival.rejected_s)}: ${arrival.code}`;
    return row;
  }
  const downloaded = arrival.downloaded_s ?? arrival.verified_s;
  // A download that is too short for the scale is still seen before its check.
  const from = Math.max(0, Math.min(arrival.announced_s, downloaded - 0.006 * endS));
  row.segments.push({ from, to: downloaded, look: "download", title: "announced to downloaded" });
  if (arrival.downloaded_s !== null) {
    row.segments.push({ from: downloaded, to: arrival.verified_s, look: "verify", title: "downloaded to verified" });
  }
  const parts = arrival.downloaded_s === null
    ? `verified ${seconds(arrival.verified_s - arrival.announced_s)} later`
    : `down ${seconds(downloaded - arrival.announced_s)}, check ${seconds(arrival.verified_s - downloaded)}`;
  row.fact = `at ${seconds(arrival.announced_s)}, ${parts}`;
  if (arrival.peer === slowest) row.className = "slow";
  return row;
}

function drawTimeline(n) {
  const [now, last] = [n.timeline, n.last_timeline];
  const main = now ?? last;
  $("tl-title").textContent = main === null ? "This round" : `Round ${main.round_id}${main === now ? ", in progress" : ""}`;
  $("tl-legend").hidden = $("tl-slowest").hidden = main === null;
  $("tl-legend").replaceChildren(
    ...["train", "stage", "upload", "wait", "apply", "download", "verify", "refused"].map((look) => make("b", `k ${look}`, look)),
  );
  $("tl-before").hidden = now === null || last === null;
  if (main === null) return empty($("timeline"), "No round has been opened yet.");
  $("tl-slowest").textContent = slowestSentence(main, main === now);
  drawRound($("timeline"), n, main, main === now ? last : null);
  if (now !== null && last !== null) {
    $("tl-before-title").textContent = `Before it, round ${last.round_id}. ${slowestSentence(last, false)}`;
    drawRound($("timeline-before"), n, last, null);
  }
}

/** One round's rows; `before` is the round before a running one: its length and peers are expected. */
function drawRound(host, n, t, before) {
  const nowS = Date.now() / 1000 + clockOffsetS - t.opened_at_s;
  const arrived = t.arrivals.map((a) => a.verified_s ?? a.rejected_s ?? 0);
  const endS = Math.max(t.closed_s ?? Math.max(nowS, before?.closed_s ?? 0), ...arrived, 0.001);
  const sorted = [...t.arrivals].sort((a, b) => (a.announced_s ?? a.rejected_s) - (b.announced_s ?? b.rejected_s));
  const rows = sorted.map((a) => arrivalRow(a, sorted.length > 1 ? t.slowest : "", endS));
  const here = new Set(t.arrivals.map((a) => a.peer));
  for (const a of before?.arrivals ?? []) {
    if (a.verified_s !== null && !here.has(a.peer)) {
      rows.push({ name: short(a.peer), title: a.peer, segments: [], fact: "not announced yet" });
    }
  }
  const segments = ownSegments(n, t, t.closed_s ?? nowS);
  const mine = { name: "this node", title: n.peer, className: "mine", segments, fact: ownFact(n, t) };
  barRows(host, [mine, ...rows], endS);
  host.append(scaleRow(endS, seconds));
}

function ownFact(n, t) {
  if (t.closed_s !== null) return `record applied at ${seconds(t.closed_s)}`;
  if (t.published_s !== null) return `published at ${seconds(t.published_s)}`;
  return n.now.phase === "training" && n.inner_steps ? `training, step ${n.now.step} of ${n.inner_steps}` : n.now.phase;
}

function slowestSentence(t, running) {
  const slow = t.arrivals.find((a) => a.peer === t.slowest);
  if (!slow) return running ? "Nothing has arrived yet." : "Nobody else's payload arrived.";
  const latency = seconds(slow.verified_s - slow.announced_s);
  return `Slowest${running ? " so far" : ""}: ${short(slow.peer)}, verified ${seconds(slow.verified_s)} after the round opened, ${latency} after its announcement.`;
}

function series(n, name, key, look, x = "round_id", area = false) {
  return { name, look, area, points: n.rounds.filter((r) => isNumber(r[key])).map((r) => [r[x], r[key]]) };
}

function drawCharts(n) {
  const byRound = { x: axis(count), wholeX: true, where: (x) => `round ${x}` };
  const lossLook = { y: (y) => y.toFixed(2), value: loss };
  const lossSeries = (x) => [series(n, "training", "mean_loss", "one", x), series(n, "held-out", "held_out_loss", "two dashed", x)];
  lineChart($("c-loss"), lossSeries("round_id"), { ...byRound, ...lossLook, label: "Loss by round" });
  lineChart($("c-bytes"), lossSeries("total_bytes"), { ...lossLook, x: axis(bytes), where: bytes, label: "Loss by bytes moved" });
  lineChart(
    $("c-gather"),
    [series(n, "median", "gather_median_s", "one"), series(n, "p95", "gather_p95_s", "three"), series(n, "worst", "gather_worst_s", "two")],
    { ...byRound, y: axis(seconds), value: seconds, fromZero: true, label: "Gather latency by round", none: "No payload of another peer has been gathered yet." },
  );
  lineChart($("c-share"), [series(n, "share of the round", "communication_ratio", "one", "round_id", true)], {
    ...byRound, y: (y) => `${(100 * y).toFixed(y < 0.1 ? 1 : 0)} %`, value: percent, fromZero: true, label: "Exposed communication by round",
  });
}

function drawPeers(n) {
  const up = n.totals.upload_s > 0 ? n.totals.uploaded_bytes / n.totals.upload_s : null;
  const rows = n.peers.map((p) => ({
    name: short(p.peer), title: p.peer, fact: `${rate(p.bytes_per_s)}, ${bytes(p.num_bytes)} in ${count(p.num_payloads)}`,
    value: p.bytes_per_s ?? 0, look: "down",
  }));
  if (n.totals.uploaded_bytes > 0) {
    const fact = up === null ? `${bytes(n.totals.uploaded_bytes)}, not timed` : `${rate(up)}, ${bytes(n.totals.uploaded_bytes)} in all`;
    rows.unshift({ name: "this node", title: n.peer, fact, value: up ?? 0, look: "up", className: "mine" });
  }
  if (rows.length === 0) return empty($("peers"), "Nothing has been transferred yet.");
  const end = Math.max(...rows.map((r) => r.value), 1);
  barRows($("peers"), rows.map((r) => ({ ...r, segments: r.value > 0 ? [{ from: 0, to: r.value, look: r.look }] : [] })), end);
}

function drawRefusals(n) {
  const codes = Object.entries(n.rejected).sort((a, b) => b[1] - a[1]);
  $("rejected").className = "bars codes";
  if (codes.length === 0) empty($("rejected"), "No payload has been refused.");
  else {
    const end = codes[0][1];
    barRows($("rejected"), codes.map(([code, times]) => ({
      name: code, fact: count(times), segments: [{ from: 0, to: times, look: "refused" }],
    })), end);
  }
  const notices = [...n.notices].reverse();
  $("notices").previousElementSibling.hidden = notices.length === 0;
  $("notices").replaceChildren(...notices.map(noticeItem));
}

function noticeItem(notice) {
  const item = make("li", notice.event === "payload-rejected" ? "refusal" : "");
  const who = notice.peer ? `, ${short(notice.peer)}` : "";
  const time = isNumber(notice.time_s) ? new Date(notice.time_s * 1000).toLocaleTimeString() : "";
  const head = make("span", "quiet", `${time}, round ${notice.round_id}${who}`);
  head.title = notice.peer;
  item.append(head, make("span", "", [notice.code, notice.detail].filter(Boolean).join(": ")));
  return item;
}

// ---------------------------------------------------------------- the live connection

function takeState(message) {
  state = message;
  clockOffsetS = message.time_s - Date.now() / 1000;
}

/** A change has everything but the rounds that this page has already. */
function takeChange(message) {
  if (state === null) return;
  clockOffsetS = message.time_s - Date.now() / 1000;
  const before = new Map(state.nodes.map((n) => [n.name, n]));
  for (const n of message.nodes) {
    const old = before.get(n.name);
    const kept = old && old.run_id === n.run_id ? old.rounds : [];
    const newest = kept.length ? kept[kept.length - 1].round_id : 0;
    n.rounds = [...kept, ...n.rounds.filter((r) => r.round_id > newest)];
    if (n.rounds.length > MAX_POINTS) n.rounds = n.rounds.filter((_, i) => i >= MAX_POINTS / 2 || i % 2 === 0);
  }
  state = message;
}

function connection(kind, text) {
  $("link").dataset.state = kind;
  $("link-text").textContent = text;
  const lost = kind === "lost";
  $("banner").hidden = !lost;
  $("banner").dataset.kind = kind;
  const ended = lost && state !== null && ["finished", "stopped"].includes(node().now.phase);
  if (ended) $("link-text").textContent = node().now.phase;
  $("banner").textContent = ended
    ? "The node has ended. The figures below are its last ones."
    : "The connection to the node is lost. The figures below are the last ones; trying again.";
}

function heard() {
  heardAtMs = Date.now();
  connection("live", "live");
}

function connect() {
  source?.close();
  heardAtMs = Date.now();
  source = new EventSource("/events");
  source.addEventListener("state", (event) => { takeState(JSON.parse(event.data)); heard(); drawAll(); });
  source.addEventListener("change", (event) => { takeChange(JSON.parse(event.data)); heard(); drawAll(); });
  source.addEventListener("heartbeat", heard);
  source.addEventListener("error", () => connection("lost", "connection lost"));
}

setInterval(() => {
  const gone = source.readyState === EventSource.CLOSED;
  if (gone || Date.now() - heardAtMs > SILENCE_MS) {
    connection("lost", "connection lost");
    connect();
  }
}, 3000);

setInterval(() => {
  if (state !== null && node().timeline !== null && !document.hidden) drawTimeline(node());
}, 500);

let width = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth !== width) {
    width = window.innerWidth;
    drawAll();
  }
});
$("node-select").addEventListener("change", (event) => { chosen = event.target.value; drawAll(); });

connect();
