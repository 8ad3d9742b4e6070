// The page's only script: heat maps, readouts under charts, buttons, and staying up to date. Everything that comes from
// a record reaches the document as text; what is swapped in was made, and escaped, by the server.
"use strict";
(() => {
  const LEAST_GAP_MS = 1000, EVERY_MS = 5000, LISTEN_MS = 10000, SAID_MS = 6000;
  const pad = (n) => String(n).padStart(2, "0");
  const clock = (seconds) => { const at = new Date(seconds * 1000); return `${pad(at.getUTCHours())}:${pad(at.getUTCMinutes())}:${pad(at.getUTCSeconds())}`; };
  const length = (s) => s < 1 ? `${(s * 1000).toPrecision(3)} ms` : `${s.toPrecision(3)} s`;
  const dataOf = (plot) => JSON.parse(plot.parentElement.querySelector("script[type='application/json']").textContent);

  // Heat maps -------------------------------------------------------------------------------------------------------
  const colour = (name) => {
    const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim().slice(1);
    return [0, 2, 4].map((at) => parseInt(text.slice(at, at + 2), 16));
  };
  const shades = () => {
    const stops = [[1, "--heat-fast"], [64, "--heat-fast"], [128, "--heat-same"], [191, "--heat-slow"], [255, "--heat-slowest"]]
      .map(([at, name]) => [at, colour(name)]);
    const table = new Uint8ClampedArray(256 * 4);
    for (let value = 1; value < 256; value++) {
      const after = stops.findIndex(([at]) => at >= value);
      const [to, high] = stops[after], [from, low] = stops[Math.max(0, after - 1)];
      const share = to === from ? 1 : (value - from) / (to - from);
      for (let part = 0; part < 3; part++) table[4 * value + part] = low[part] + share * (high[part] - low[part]);
      table[4 * value + 3] = 255;
    }
    return table;
  };
  function drawHeat(plot) {
    const cells = dataOf(plot), canvas = plot.querySelector("canvas"), raw = atob(cells.values), table = shades();
    const small = document.createElement("canvas");
    small.width = cells.columns; small.height = cells.rows;
    const pen = small.getContext("2d"), image = pen.createImageData(cells.columns, cells.rows);
    for (let at = 0; at < raw.length; at++) {
      const from = 4 * raw.charCodeAt(at);
      for (let part = 0; part < 4; part++) image.data[4 * at + part] = table[from + part];
    }
    pen.putImageData(image, 0, 0);
    const ink = canvas.getContext("2d");
    ink.imageSmoothingEnabled = false;
    ink.clearRect(0, 0, canvas.width, canvas.height);
    ink.strokeStyle = getComputedStyle(canvas).getPropertyValue("--edge");
    ink.beginPath();  // hatched where nothing is known
    for (let x = -canvas.height; x < canvas.width; x += 8) { ink.moveTo(x, canvas.height); ink.lineTo(x + canvas.height, 0); }
    ink.stroke();
    ink.drawImage(small, 0, 0, canvas.width, canvas.height);
    plot.cells = cells; plot.raw = raw;
  }
  const drawAll = (within) => within.querySelectorAll(".plot.heat").forEach(drawHeat);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll(document));

  // What is under the pointer ---------------------------------------------------------------------------------------
  const readout = {
    heat(plot, across, down) {
      const { cells, raw } = plot, column = Math.floor(across * cells.columns), row = Math.floor(down * cells.rows);
      const value = raw.charCodeAt(row * cells.columns + column);
      const said = value ? `${Math.pow(2, (value - 128) / 63.5).toFixed(2)} × ${cells.against}` : "no step finished";
      return `rank ${cells.labels[row]}, ${clock(cells.from_s + (column + 0.5) * cells.column_s)}: ${said}`;
    },
    line(plot, across) {
      const { from_s, column_s, healthy_s, values } = plot.series ??= dataOf(plot);
      const column = Math.floor(across * values.length), value = values[column];
      plot.querySelector(".cursor").setAttribute("d", `M${(column + 0.5) * 1000 / values.length} 0V100`);
      const against = value !== null && healthy_s ? `, ${(value / healthy_s).toFixed(2)} × healthy` : "";
      return `${clock(from_s + (column + 0.5) * column_s)}: ${value === null ? "no step finished" : length(value)}${against}`;
    },
  };
  document.addEventListener("pointermove", (event) => {
    const plot = event.target.closest?.("[data-readout]"), drawn = plot?.querySelector("canvas, svg");
    if (!drawn) return;
    const box = drawn.getBoundingClientRect(), across = (event.clientX - box.left) / box.width, down = (event.clientY - box.top) / box.height;
    if (across < 0 || across >= 1 || down < 0 || down >= 1) return;
    plot.parentElement.querySelector(".readout").textContent = readout[plot.dataset.readout](plot, across, down);
  });

  // Buttons ---------------------------------------------------------------------------------------------------------
  let saidTimer;
  function say(text, wrong) {
    const place = document.getElementById("said");
    place.textContent = text;
    place.classList.toggle("wrong", wrong);
    clearTimeout(saidTimer);
    saidTimer = setTimeout(() => { place.textContent = ""; }, SAID_MS);
  }
  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("button[data-post]");
    if (!button) return;
    const group = [...(button.parentElement.querySelectorAll("button[data-post]"))];
    for (const one of group) one.disabled = true;
    try {
      const answer = await fetch(button.dataset.post, { method: "POST", headers: { "content-type": "application/json" }, body: button.dataset.body });
      if (answer.ok) { say(button.dataset.said, false); }
      else { say((await answer.json().catch(() => ({}))).detail ?? `The server refused (${answer.status}).`, true); }
    } catch { say("The server cannot be reached.", true); }
    for (const one of group) one.disabled = false;
    button.focus();
    again();
  });

  // Staying up to date ----------------------------------------------------------------------------------------------
  const live = document.body.dataset.live, connection = document.getElementById("connection");
  function connected(state, words) { if (connection) { connection.dataset.state = state; connection.textContent = words; } }
  function swap(fresh) {
    for (const part of document.querySelectorAll("[data-part]")) {
      const other = fresh.getElementById(part.id);
      if (!other || part.querySelector("button:disabled")) continue;
      const scrolled = [...part.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
      if (other.outerHTML === part.was) continue;
      const made = other.outerHTML;
      for (const one of part.querySelectorAll("details[open][id]")) other.querySelector(`#${CSS.escape(one.id)}`)?.setAttribute("open", "");
      const focused = part.contains(document.activeElement) ? document.activeElement.id : "";
      const taken = document.importNode(other, true);
      taken.was = made;
      part.replaceWith(taken);
      taken.querySelectorAll(".scroll").forEach((one, at) => { one.scrollLeft = scrolled[at] ?? 0; });
      if (focused) document.getElementById(focused)?.focus();
      drawAll(taken);
    }
  }
  let asked = 0, asking = false, timer;
  async function refresh() {
    if (asking) return;
    asking = true; asked = Date.now();
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" } });
      if (answer.status === 401) { location.reload(); return; }
      if (answer.ok) swap(new DOMParser().parseFromString(await answer.text(), "text/html"));
    } catch { connected("lost", "server away"); } finally { asking = false; }
  }
  function again() {
    clearTimeout(timer);
    timer = setTimeout(refresh, Math.max(0, asked + LEAST_GAP_MS - Date.now()));
  }
  function follow() {
    let source;
    const heard = (event) => {
      const news = JSON.parse(event.data), ours = live === "*" || news.job === live || news.job === "*" || news.what === "everything";
      if (ours && news.what !== "verdict" && !document.hidden) again();
    };
    const listen = () => {
      source = new EventSource("/events");
      source.onopen = () => connected("on", "live");
      source.onerror = () => {
        connected("lost", "reconnecting");
        // A browser asks again after a connection that broke, but never after an answer that was none.
        if (source.readyState === EventSource.CLOSED) setTimeout(listen, LISTEN_MS);
      };
      source.onmessage = heard;
    };
    listen();
    addEventListener("pagehide", () => source.close());
    document.addEventListener("visibilitychange", () => { if (!document.hidden) again(); });
    setInterval(() => { if (!document.hidden && Date.now() - asked >= EVERY_MS) again(); }, EVERY_MS);
  }
  async function loadParts() {
    for (const place of document.querySelectorAll("[data-load]")) {
      try {
        const answer = await fetch(place.dataset.load);
        if (answer.ok) place.replaceChildren(...document.importNode(new DOMParser().parseFromString(await answer.text(), "text/html").body, true).childNodes);
      } catch { place.textContent = "The server cannot be reached."; }
    }
  }
  drawAll(document);
  if (live) { follow(); loadParts(); }
})();
