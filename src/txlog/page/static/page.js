"use strict";
// The page of `txlog serve`. The server draws sections, views and fragments; this puts them in their
// places. An address such as #/topic?topic=orders names a view; without one the overview is shown.
const $ = (id) => document.getElementById(id);
const root = document.documentElement;
// A token comes behind the #, which is sent to no server, or by the form. It is kept for this tab
// and goes out in a header: not in a cookie, so no other page can use it, nor in an address.
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) { sessionStorage.setItem("token", given); window.history.replaceState(null, "", location.pathname); }
const token = () => sessionStorage.getItem("token");
const signed = () => (token() ? { Authorization: `Bearer ${token()}` } : {});
const held = (place) => { // whether the user is selecting text in this place
  const chosen = getSelection();
  return !chosen.isCollapsed && place.contains(chosen.anchorNode);
};
let isPaused = false;
let store = "txlog";
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
  const inTurn = () => [...place.querySelectorAll("summary, button, a, .scroll")];
  const at = active && inTurn().indexOf(active), href = active?.getAttribute("href");
  place.innerHTML = text; // made by the server, with every text from the store escaped
  place.querySelectorAll("details").forEach((one, at) => { one.open = opened[at] === true; });
  place.querySelectorAll(".scroll").forEach((one, at) => {
    [one.scrollLeft, one.scrollTop] = scrolled[at] || [0, 0];
  });
  if (active) {
    const named = href && [...place.querySelectorAll("a")].find((one) => one.getAttribute("href") === href);
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
  store = name;
  entitle();
  $("health").textContent = health;
  $("health").className = `pill ${health === "ok" ? "good" : "bad"}`;
  const where = document.createElement("b");
  where.textContent = path;
  $("said").replaceChildren(where, ` · ${said}`);
  if (!$("sql").value) suggest();
  refresh();
  root.dataset.looks = String(Number(root.dataset.looks || 0) + 1);
}

const AGAIN_MS = 3000;
const shownIn = {
  look: (found) => {
    state("live", "live");
    show(found);
  },
  failure: ({ reason, hint }) => {
    state("failing", "lost", hint ? `${reason} (${hint})` : reason);
  },
};

// Server-sent events, read by hand: the browser's own reader of them sends no header.
async function follow(body, hear) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (text + value).split("\n\n");
    text = events.pop();
    for (const one of events) {
      const lines = one.split("\n");
      const all = (name) => lines.filter((line) => line.startsWith(name)).map((line) => line.slice(name.length));
      const data = all("data: ").join("\n");
      if (data) hear[all("event: ").join("")]?.(JSON.parse(data)); // a comment has none
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
      if (answer.ok) await follow(answer.body, shownIn); else said = `The server answers ${answer.status}.`;
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
  if ($("login").open) return; // several requests may be refused; the user may be writing by now
  $("login-why").textContent = token() ? reason : "This server wants to know who you are.";
  if (status === 401) sessionStorage.removeItem("token");
  account();
  $("token").value = "";
  $("login").showModal();
}

$("login-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", $("token").value.trim());
  $("token").value = "";
  $("login").close();
  account();
  connect();
  navigate();
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
const newest = (topic) => `SELECT message_id, publish_time, key, text(value) AS value\nFROM ${quoted(topic)} ORDER BY publish_time DESC LIMIT 50`;

function suggest() {
  const first = document.querySelector("#topics a.link");
  if (first) $("sql").placeholder = newest(first.textContent);
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

// The JSON of an answer; an error has the server's reason.
async function got(path, options = {}) {
  const headers = { ...options.headers, ...signed() }, sent = token();
  const answer = await fetch(path, { ...options, headers }).catch((error) => {
    throw options.signal?.aborted ? error : new Error("The server does not answer.");
  });
  const found = await answer.json().catch(() => { throw new Error(`The server answers ${answer.status}.`); });
  if (answer.status === 401 && sent === token()) refused(401, found.reason);
  if (!answer.ok) throw new Error(found.hint ? `${found.reason} (${found.hint})` : found.reason);
  return found;
}

const posted = (path, fields) => got(path, {
  method: "POST", body: JSON.stringify(fields), headers: { "Content-Type": "application/json" },
});

function complaint(error) {
  const said = document.createElement("p");
  said.className = "bad"; said.textContent = error.message;
  return said;
}

async function run() {
  const sql = $("sql").value.trim() || $("sql").placeholder;
  if (!sql || $("run").disabled) return;
  $("sql").value = sql;
  $("run").disabled = true;
  $("answer").textContent = "running…";
  try {
    const found = await posted("page/query", { sql });
    const count = `${found.rows.length} row${found.rows.length === 1 ? "" : "s"}`;
    $("answer").textContent = `${found.is_cut ? `the first ${count}` : count}, ${found.elapsed_ms} ms`;
    $("result").replaceChildren(table(found));
  } catch (error) {
    $("answer").textContent = "";
    $("result").replaceChildren(complaint(error));
  }
  $("run").disabled = false;
}

$("form").addEventListener("submit", (event) => { event.preventDefault(); run(); });

// --- views ------------------------------------------------------------------------------------

const REFRESH_MS = 2000; // between two readings of a view
let view = null; // {name, query}; null: the overview
let viewTitle = "", drawnAt = 0, isDrawing = false;

function entitle() {
  document.title = `${view && viewTitle ? `${viewTitle} · ` : ""}${store}: txlog`;
}

// Fragments keep what the user wrote in them and where they are, so their nodes stay.
function place(html) {
  const made = document.createElement("template");
  made.innerHTML = html; // made by the server, with every text from the store escaped
  const here = $("view");
  let at = here.firstElementChild;
  const dropTo = (end) => { while (at !== end) { const next = at.nextElementSibling; at.remove(); at = next; } };
  for (const fresh of [...made.content.children]) {
    const path = fresh.dataset.load;
    const kept = path && [...here.children].find((one) => one.dataset.load === path);
    if (kept) { dropTo(kept); at = kept.nextElementSibling; continue; }
    if (at && !at.dataset.load && !path) {
      if (at.outerHTML === fresh.outerHTML) { at = at.nextElementSibling; continue; }
      const sides = [...at.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
      at.replaceWith(fresh);
      fresh.querySelectorAll(".scroll").forEach((one, n) => { one.scrollLeft = sides[n] || 0; });
      at = fresh.nextElementSibling;
    } else here.insertBefore(fresh, at);
  }
  dropTo(null);
  fill(here);
}

// Loads the fragments in a place: each once, and again after the seconds that it names.
function fill(where) {
  for (const one of where.querySelectorAll("[data-load]")) {
    const age = Date.now() - Number(one.dataset.loaded || 0), every = Number(one.dataset.every || 0) * 1000;
    if (!one.dataset.loaded || (every && age > every && !held(one))) load(one);
  }
}

async function load(one) {
  const path = one.dataset.load;
  one.dataset.loaded = String(Date.now());
  let html = null, error = null;
  try { ({ html } = await got(path)); } catch (failure) { error = failure; }
  if (one.dataset.load !== path) return;
  if (error) {
    const box = document.createElement("section");
    box.append(complaint(error));
    one.replaceChildren(box);
  } else if (one.shownHtml !== html) { one.innerHTML = html; one.shownHtml = html; }
}

async function draw() {
  const asked = view;
  if (!asked || isDrawing) return;
  isDrawing = true;
  try {
    const { title, html } = await got(`page/${asked.name}?${asked.query}`);
    if (asked === view && !held($("view"))) { viewTitle = title; entitle(); place(html); }
  } catch (error) {
    if (asked === view) { const box = document.createElement("section"); box.append(complaint(error)); $("view").replaceChildren(box); }
  }
  drawnAt = Date.now();
  isDrawing = false;
  if (asked !== view) draw();
}

function refresh() {
  if (view) { fill($("view")); if (Date.now() - drawnAt >= REFRESH_MS) draw(); } else fill($("overview"));
}

function navigate() {
  const [, name, query] = /^#\/([a-z]*)\??(.*)$/.exec(location.hash) || [];
  const before = view?.name, words = new URLSearchParams(query);
  const isSame = before === name && ["topic", "subscription", "id"].every((word) => words.get(word) === new URLSearchParams(view?.query).get(word));
  tailed?.abort();
  view = name ? { name, query } : null;
  $("view").hidden = !view;
  $("overview").hidden = Boolean(view);
  document.body.classList.toggle("away", Boolean(view));
  if (view) {
    if (!isSame) { $("view").replaceChildren(); scrollTo(0, 0); }
    draw();
  } else {
    viewTitle = "";
    if (before) scrollTo(0, 0);
    const path = `page/history${words.get("span") ? `?${new URLSearchParams({ span: words.get("span") })}` : ""}`;
    if ($("history").dataset.load !== path) { $("history").dataset.load = path; delete $("history").dataset.loaded; }
    fill($("overview"));
  }
  entitle();
}

// --- the live tail of a topic -----------------------------------------------------------------

const TAIL_MAX = 200, SHOWN_MAX = 300; // rows; characters of a value
let tailed = null; // ends the tail
const shortened = (text) => (text.length <= SHOWN_MAX ? text : `${text.slice(0, SHOWN_MAX)}…`);

async function tail(button) {
  if (tailed) { tailed.abort(); return; }
  const ending = tailed = new AbortController();
  const shown = button.closest("section").querySelector(".tail"), topic = button.dataset.topic;
  const said = document.createElement("p");
  said.className = "note"; said.textContent = "connecting…";
  const rows = table({ columns: ["message", "written, UTC", "key", "value"].map((name) => ({ name, type: "string" })), rows: [] });
  shown.replaceChildren(said, rows);
  button.setAttribute("aria-pressed", "true");
  let count = 0;
  const hear = {
    "": (one) => {
      const value = one.value ?? (one.value_base64 === undefined ? null : `base64: ${one.value_base64}`);
      const row = cells([one.message_id, new Date(one.publish_time).toISOString().replace("T", " ").replace("Z", ""),
        one.key ?? one.key_base64 ?? null, value === null ? null : shortened(value)], []);
      const link = document.createElement("a");
      link.className = "link"; link.textContent = one.message_id;
      link.href = `#/message?${new URLSearchParams({ topic, id: one.message_id })}`;
      row.firstElementChild.replaceChildren(link);
      const body = rows.querySelector("tbody");
      body.prepend(row);
      while (body.rows.length > TAIL_MAX) body.lastElementChild.remove();
      count += 1;
      said.textContent = `live: ${count.toLocaleString("en")} message${count === 1 ? "" : "s"}`;
    },
    failure: ({ reason }) => { said.textContent = reason; said.className = "bad"; },
  };
  try {
    const path = button.dataset.tail.split("/").map(encodeURIComponent).join("/");
    const answer = await fetch(`topics/persistent/${path}/events?start=end`, { headers: signed(), signal: ending.signal });
    if (!answer.ok) hear.failure(await answer.json());
    else { said.textContent = "live: no message yet"; await follow(answer.body, hear); said.textContent += " (the server has ended the tail)"; }
  } catch (error) {
    said.textContent = ending.signal.aborted ? said.textContent.replace("live", "stopped") : "The server does not answer.";
  }
  button.setAttribute("aria-pressed", "false");
  if (tailed === ending) tailed = null;
}

// --- forms ------------------------------------------------------------------------------------

async function act(form) {
  const outcome = form.closest(".outcome") || form.nextElementSibling, button = form.querySelector("[type=submit]");
  button.disabled = true;
  try {
    const { html } = await posted(`page/act/${form.dataset.act}`, Object.fromEntries(new FormData(form)));
    outcome.innerHTML = html; // made by the server
    drawnAt = 0;
    draw();
  } catch (error) { outcome.replaceChildren(complaint(error)); }
  button.disabled = false;
}

document.addEventListener("submit", (event) => {
  const { go, act: name } = event.target.dataset;
  if (go === undefined && name === undefined) return;
  event.preventDefault();
  if (name !== undefined) { act(event.target); return; }
  const words = [...new FormData(event.target)].filter(([, value]) => value.trim());
  location.hash = `#/${go}?${new URLSearchParams(words)}`;
});
document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-tail]");
  if (button) tail(button);
});
addEventListener("hashchange", navigate);

// --- keys -------------------------------------------------------------------------------------

const links = [...document.querySelectorAll("#nav a:not([class])")];
const places = links.map((one) => $(one.hash.slice(1)));

function current() {
  const line = 130;
  const below = places.map((one, at) => ({ at, top: one.getBoundingClientRect().top }))
    .filter(({ top }) => top <= line).sort((a, b) => b.top - a.top);
  return below.length ? below[0].at : -1;
}

let marked = -1;
function mark() {
  if (view) return;
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
    if (field === $("sql") && event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); }
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const searched = () => (view ? $("view").querySelector("[name=text]") : $("sql"))?.focus();
  const acts = { "/": searched, p: pause, o: () => { location.hash = "#/"; }, "?": () => $("help").showModal() };
  if (!view) Object.assign(acts, { j: () => go(1), k: () => go(-1) });
  const chosen = acts[event.key] || (!view && /^[1-8]$/.test(event.key) ? () => links[Number(event.key) - 1].click() : null);
  if (chosen) { event.preventDefault(); chosen(); }
});
$("pause").addEventListener("click", pause);
$("help-button").addEventListener("click", () => $("help").showModal());
addEventListener("scroll", mark, { passive: true });
if (token()) account();
navigate();
connect();
