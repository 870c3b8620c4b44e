"use strict";
// The page of `txlog serve`. The server draws the sections; this puts them in their places.
const $ = (id) => document.getElementById(id);
const root = document.documentElement;
// A token comes behind the #, which is sent to no server, or by the form. It is kept for this tab
// and goes out in a header: not in a cookie, so no other page can use it, nor in an address.
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) { sessionStorage.setItem("token", given); history.replaceState(null, "", location.pathname); }
const token = () => sessionStorage.getItem("token");
const signed = () => (token() ? { Authorization: `Bearer ${token()}` } : {});
const held = (place) => { // whether the user is selecting text in this place
  const chosen = getSelection();
  return !chosen.isCollapsed && place.contains(chosen.anchorNode);
};
let isPaused = false;
let link = ["connecting", ""]; // to the server: a word, and live, lost or neither
let stop = null; // ends the stream
const kept = new Map(); // sections that came while paused

function state(word, kind, said) {
  link = [word, kind];
  drawState();
  if (kind !== "lost") return;
  $("health").textContent = "unknown"; // what was seen last may not be so any more
  $("health").className = "pill";
  if (said) $("said").textContent = said;
}

function drawState() {
  const [word, kind] = link, isLost = kind === "lost";
  $("state").textContent = !isPaused ? word : isLost ? `paused, ${word}` : "paused";
  $("dot").className = `dot ${isPaused && !isLost ? "" : kind}`;
  document.body.classList.toggle("lost", isLost);
}

function put(name, text) {
  const place = $(name);
  if (!place) return true;
  if (held(place)) return false;
  // What a reader has opened, scrolled or focused stays so.
  const opened = [...place.querySelectorAll("details")].map((one) => one.open);
  const scrolled = [...place.querySelectorAll(".scroll")].map((one) => [one.scrollLeft, one.scrollTop]);
  const active = place.contains(document.activeElement) ? document.activeElement : null;
  const inTurn = () => [...place.querySelectorAll("summary, button, .scroll")];
  const at = active && inTurn().indexOf(active), topic = active?.dataset.topic;
  place.innerHTML = text; // made by the server, with every text from the store escaped
  place.querySelectorAll("details").forEach((one, at) => { one.open = opened[at] === true; });
  place.querySelectorAll(".scroll").forEach((one, at) => {
    [one.scrollLeft, one.scrollTop] = scrolled[at] || [0, 0];
  });
  if (active) {
    const named = topic && [...place.querySelectorAll("[data-topic]")].find((one) => one.dataset.topic === topic);
    (named || inTurn()[at])?.focus({ preventScroll: true });
  }
  return true;
}

function putAll() {
  for (const [name, text] of kept) if (put(name, text)) kept.delete(name);
}

function show(look) {
  for (const [name, text] of Object.entries(look.sections)) kept.set(name, text);
  if (isPaused) return;
  putAll();
  const { path, health, said } = look.head;
  const name = path.split("/").pop() || path;
  $("path").textContent = name;
  document.title = `${name}: txlog`;
  $("health").textContent = health;
  $("health").className = `pill ${health === "ok" ? "good" : "bad"}`;
  const where = document.createElement("b");
  where.textContent = path;
  $("said").replaceChildren(where, ` · ${said}`);
  if (!$("sql").value) suggest();
  root.dataset.looks = String(Number(root.dataset.looks || 0) + 1);
}

const AGAIN_MS = 3000;
const hear = {
  look: (found) => {
    state("live", "live");
    show(found);
  },
  failure: ({ reason, hint }) => {
    state("failing", "lost", hint ? `${reason} (${hint})` : reason);
  },
};

// Server-sent events, read by hand: the browser's own reader of them sends no header.
async function follow(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (text + value).split("\n\n");
    text = events.pop();
    for (const one of events) {
      const lines = one.split("\n");
      const all = (name) => lines.filter((line) => line.startsWith(name)).map((line) => line.slice(name.length));
      hear[all("event: ").join("")]?.(JSON.parse(all("data: ").join("\n")));
    }
  }
}

async function connect() {
  stop?.abort();
  const ending = stop = new AbortController();
  while (!ending.signal.aborted) {
    let said = "The server does not answer.";
    try {
      const answer = await fetch("page/stream", { headers: signed(), signal: ending.signal });
      if (answer.status === 401 || answer.status === 403) { refused(answer.status, (await answer.json()).reason); return; }
      if (answer.ok) await follow(answer.body); else said = `The server answers ${answer.status}.`;
    } catch { /* tried again */ }
    if (ending.signal.aborted) return;
    state("reconnecting", "lost", `${said} It is asked again every ${AGAIN_MS / 1000} seconds.`);
    await new Promise((done) => { setTimeout(done, AGAIN_MS); });
  }
}

// --- sign in ------------------------------------------------------------------------------------

function account() {
  $("account").hidden = false;
  $("account").textContent = token() ? "Log out" : "Log in";
}

function refused(status, reason) {
  state("refused", "lost");
  $("login-why").textContent = token() ? reason : "This server wants to know who you are.";
  if (status === 401) sessionStorage.removeItem("token");
  account();
  $("token").value = "";
  if (!$("login").open) $("login").showModal();
}

$("login-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", $("token").value.trim());
  $("token").value = "";
  $("login").close();
  account();
  connect();
});
$("login-close").addEventListener("click", () => $("login").close());
$("account").addEventListener("click", () => {
  if (!token()) { $("login").showModal(); return; }
  sessionStorage.removeItem("token");
  location.reload(); // nothing of the store stays on the screen
});

function pause() {
  isPaused = !isPaused;
  $("pause").setAttribute("aria-pressed", String(isPaused));
  drawState();
  if (!isPaused) putAll();
}

// --- messages ---------------------------------------------------------------------------------

const quoted = (name) => `"${name.replaceAll('"', '""')}"`;
const full = (topic) => (topic.includes("/") ? topic : `public/default/${topic}`);
const newest = (topic) => `SELECT message_id, publish_time, key, text(value) AS value\nFROM ${quoted(topic)} ORDER BY publish_time DESC LIMIT 50`;

function suggest() {
  const first = document.querySelector("#topics [data-topic]");
  if (first) $("sql").placeholder = newest(first.dataset.topic);
}

function cells(row, kinds) {
  const line = document.createElement("tr");
  row.forEach((value, at) => {
    const cell = document.createElement("td");
    if (value === null) { cell.className = "null"; cell.textContent = "null"; }
    else { cell.textContent = String(value); if (kinds[at]) cell.className = "n"; }
    line.append(cell);
  });
  return line;
}

function table(found) {
  const kinds = found.columns.map(({ type }) => /^(u?int|float|double|decimal)/.test(type));
  const head = document.createElement("tr");
  found.columns.forEach(({ name, type }, at) => {
    const cell = document.createElement("th");
    cell.scope = "col"; cell.textContent = name; cell.title = type;
    if (kinds[at]) cell.className = "n";
    head.append(cell);
  });
  const made = document.createElement("table"), top = document.createElement("thead");
  const body = document.createElement("tbody"), scroll = document.createElement("div");
  top.append(head);
  body.append(...found.rows.map((row) => cells(row, kinds)));
  made.append(top, body);
  scroll.className = "scroll"; scroll.tabIndex = 0; scroll.append(made);
  return scroll;
}

const SHOWN_MAX = 2000; // as the server cuts what SQL finds
const shortened = (text) => (text === null || text.length <= SHOWN_MAX ? text
  : `${text.slice(0, SHOWN_MAX)}… (${text.length.toLocaleString("en")} characters)`);

// The newest messages of a topic are read from its end; SQL would look through all of it.
async function open(topic) {
  $("sql").value = newest(topic);
  $("answer").textContent = "reading…";
  const path = full(topic).split("/").map(encodeURIComponent).join("/");
  await answered(fetch(`topics/persistent/${path}?start=-50&limit=500`, { headers: signed() }), ({ messages }) => {
    messages.sort((a, b) => b.publish_time - a.publish_time);
    const instant = (ms) => new Date(ms).toISOString().replace("T", " ").replace("Z", "");
    const names = ["message_id", "publish_time", "key", "value"];
    return {
      columns: names.map((name) => ({ name, type: "string" })),
      rows: messages.map((one) => [one.message_id, instant(one.publish_time),
        shortened(one.key ?? one.key_base64 ?? null),
        shortened(one.value ?? (one.value_base64 === undefined ? null : `base64: ${one.value_base64}`))]),
      said: `the newest ${messages.length} messages`,
    };
  });
}

async function answered(asked, made) {
  try {
    const answer = await asked.catch(() => { throw new Error("The server does not answer."); });
    const found = await answer.json().catch(() => { throw new Error(`The server answers ${answer.status}.`); });
    if (!answer.ok) throw new Error(found.hint ? `${found.reason} (${found.hint})` : found.reason);
    const { said, ...rest } = made(found);
    $("answer").textContent = said;
    $("result").replaceChildren(table(rest));
  } catch (error) {
    const said = document.createElement("p");
    said.className = "bad"; said.textContent = error.message;
    $("answer").textContent = "";
    $("result").replaceChildren(said);
  }
}

async function run() {
  const sql = $("sql").value.trim() || $("sql").placeholder;
  if (!sql || $("run").disabled) return;
  $("sql").value = sql;
  $("run").disabled = true;
  $("answer").textContent = "running…";
  const asked = fetch("page/query", {
    method: "POST", body: JSON.stringify({ sql }), headers: { "Content-Type": "application/json", ...signed() },
  });
  await answered(asked, (found) => {
    const count = `${found.rows.length} row${found.rows.length === 1 ? "" : "s"}`;
    return { ...found, said: `${found.is_cut ? `the first ${count}` : count}, ${found.elapsed_ms} ms` };
  });
  $("run").disabled = false;
}

$("form").addEventListener("submit", (event) => { event.preventDefault(); run(); });
document.addEventListener("click", (event) => {
  const topic = event.target.closest?.("[data-topic]")?.dataset.topic;
  if (topic === undefined) return;
  $("browse").scrollIntoView();
  open(topic);
});

// --- keys -------------------------------------------------------------------------------------

const links = [...document.querySelectorAll("nav a")];
const places = links.map((one) => $(one.hash.slice(1)));

function current() {
  const line = 130;
  const below = places.map((one, at) => ({ at, top: one.getBoundingClientRect().top }))
    .filter(({ top }) => top <= line).sort((a, b) => b.top - a.top);
  return below.length ? below[0].at : -1;
}

let marked = -1;
function mark() {
  const at = current();
  if (at === marked) return;
  marked = at;
  $("nav").scrollLeft = at < 0 ? 0 : links[at].offsetLeft - 60;
  links.forEach((one, n) => {
    if (n === at) one.setAttribute("aria-current", "true"); else one.removeAttribute("aria-current");
  });
}

function go(step) {
  const order = places.map((one, at) => ({ at, top: one.getBoundingClientRect().top + scrollY }))
    .sort((a, b) => a.top - b.top).map(({ at }) => at);
  const now = order.indexOf(current());
  const next = order[Math.max(0, Math.min(order.length - 1, now + step))];
  places[next].scrollIntoView();
}

document.addEventListener("keydown", (event) => {
  const field = event.target.closest?.("textarea, input, select");
  if (event.key === "Escape") { field?.blur(); return; }
  if (field) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); }
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const acts = { "/": () => $("sql").focus(), p: pause, j: () => go(1), k: () => go(-1), "?": () => $("help").showModal() };
  const act = acts[event.key] || (/^[1-8]$/.test(event.key) ? () => links[Number(event.key) - 1].click() : null);
  if (act) { event.preventDefault(); act(); }
});
$("pause").addEventListener("click", pause);
$("help-button").addEventListener("click", () => $("help").showModal());
addEventListener("scroll", mark, { passive: true });
if (token()) account();
connect();
