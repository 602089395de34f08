// Draws the figures of a page, and updates it: requests the page again and replaces what has changed.
"use strict";
(() => {
  const every = 1000 * Number(document.body.dataset.every);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 600px)"); // no room for a legend: the table's first column is one
  const touch = matchMedia("(pointer: coarse)").matches;
  let figures = document.getElementById("figures").textContent;
  let answered = new Date();

  // Variables of the style sheet hold a light and a dark colour; only a real property resolves them.
  const probe = document.body.appendChild(document.createElement("i"));
  probe.hidden = true;
  function colour(tone) {
    probe.style.color = `var(--${tone})`;
    return getComputedStyle(probe).color;
  }

  // A copy with "tone:NAME", anywhere in it, replaced by that colour of the page.
  function coloured(value) {
    if (typeof value === "string") return value.startsWith("tone:") ? colour(value.slice(5)) : value;
    if (Array.isArray(value)) return typeof value[0] === "number" ? value : value.map(coloured);
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, coloured(part)]));
  }

  // Plotly's figure with the page's colours, light or dark. A trace's `tone` colours its line and markers.
  function themed(given) {
    const figure = coloured(given);
    const data = figure.data.map((trace) => trace.tone ? {
      ...trace,
      line: trace.line && { ...trace.line, color: colour(trace.tone) },
      marker: { ...trace.marker, color: colour(trace.tone) },
    } : trace);
    const axis = { gridcolor: colour("edge"), linecolor: colour("edge"), zerolinecolor: colour("mark"), automargin: true };
    const layout = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: 12, color: colour("text") },
      margin: { l: 56, r: 12, t: 8, b: 32 },
      showlegend: !narrow.matches,
      legend: { orientation: "h", y: -0.12 },
      hoverlabel: { bgcolor: colour("paper"), bordercolor: colour("edge"), font: { color: colour("text") } },
      dragmode: touch ? false : "zoom",
      uirevision: "kept", // zoom and hidden lines stay when the data change
      ...figure.layout,
    };
    for (const name of Object.keys(layout).filter((key) => /^[xy]axis/.test(key))) {
      layout[name] = { ...axis, ...layout[name] };
    }
    layout.shapes = (layout.shapes || []).map((shape) => shape.tone ? { ...shape, line: { color: colour(shape.tone), width: 1, dash: "dot" } } : shape);
    layout.annotations = (layout.annotations || []).map((note) => ({ ...note, font: { size: 11, color: colour("quiet") } }));
    return [data, layout];
  }

  function draw() {
    const every = JSON.parse(figures);
    for (const place of document.querySelectorAll("[data-figure]")) {
      const figure = every[place.dataset.figure];
      if (!figure) continue;
      Plotly.react(place, ...themed(figure), { responsive: true, displayModeBar: false });
      if ("zooms" in place.dataset && !place.dataset.bound) offerZoom(place);
    }
  }

  // A figure that zooms: the address gets the range, and the server answers with candles that fit it.
  function offerZoom(place) {
    place.dataset.bound = "true";
    const range = () => place.layout.xaxis.range.map((edge) => typeof edge === "number" ? edge : Date.parse(`${edge.replace(" ", "T")}Z`));
    const show = (first, stop) => {
      const text = (moment) => new Date(moment).toISOString().slice(0, 16);
      const query = new URLSearchParams(location.search);
      for (const name of ["days", "to", "first", "stop"]) query.delete(name);
      if (first !== undefined) {
        query.set("first", text(first));
        query.set("stop", text(Math.max(stop, first + 60000)));
      }
      history.replaceState(null, "", `${location.pathname}?${query}`);
      look();
    };
    place.on("plotly_relayout", (change) => {
      if (change["xaxis.autorange"]) show();
      else if (Object.keys(change).some((key) => key.startsWith("xaxis.range"))) show(...range());
    });
    const moves = {
      in: (first, width) => [first + width / 4, first + 3 * width / 4],
      out: (first, width) => [first - width / 2, first + 3 * width / 2],
      back: (first, width) => [first - width / 2, first + width / 2],
      on: (first, width) => [first + width / 2, first + 3 * width / 2],
    };
    const buttons = document.querySelector(".zoom");
    buttons.hidden = false;
    buttons.addEventListener("click", (event) => {
      const move = moves[event.target.dataset.zoom];
      const [first, stop] = range();
      if (move) show(...move(first, stop - first));
    });
  }

  const outline = (page) => [...page.querySelectorAll("[data-live], [data-figure]")].map((part) => part.id || part.dataset.figure).join();

  // Tables that are wider than their place say so, to the eye and to screen readers.
  function markWide(root = document) {
    for (const box of root.querySelectorAll(".scroll")) {
      const wide = box.scrollWidth > box.clientWidth;
      box.dataset.label ??= box.getAttribute("aria-label");
      box.setAttribute("aria-label", box.dataset.label + (wide ? ", scrolls sideways" : ""));
      if (box.previousElementSibling?.matches(".sideways")) box.previousElementSibling.hidden = !wide;
    }
  }

  // A part as the server sent it: without the marks of `markWide`.
  function unmarked(part) {
    const copy = part.cloneNode(true);
    for (const box of copy.querySelectorAll(".scroll[data-label]")) {
      box.setAttribute("aria-label", box.dataset.label);
      box.removeAttribute("data-label");
      if (box.previousElementSibling?.matches(".sideways")) box.previousElementSibling.hidden = true;
    }
    return copy.innerHTML;
  }

  function update(page) {
    if (outline(page) !== outline(document)) return location.reload(); // a part has come or gone
    for (const part of page.querySelectorAll("[data-live]")) {
      const old = document.getElementById(part.id);
      if (unmarked(old) === part.innerHTML) continue;
      const places = [...old.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
      const focused = [...old.querySelectorAll("a, [tabindex]")].indexOf(document.activeElement);
      old.innerHTML = part.innerHTML;
      markWide(old);
      old.querySelectorAll(".scroll").forEach((box, index) => { box.scrollLeft = places[index] || 0; });
      if (focused >= 0) old.querySelectorAll("a, [tabindex]")[focused]?.focus({ preventScroll: true });
    }
    document.title = page.title;
    const newer = page.getElementById("figures").textContent;
    if (newer !== figures) {
      figures = newer;
      draw();
    }
  }

  async function look() {
    const gone = document.getElementById("gone"), asked = location.href;
    try {
      const answer = await fetch(asked, { signal: AbortSignal.timeout(3 * every) });
      if (answer.status === 401) return location.reload(); // the server was restarted: it asks for its token
      if (!answer.ok && answer.status !== 503) throw new Error(answer.statusText);
      if (asked !== location.href) return; // zoomed meanwhile: the next answer counts
      update(new DOMParser().parseFromString(await answer.text(), "text/html"));
      answered = new Date();
      gone.hidden = true;
    } catch (problem) {
      gone.textContent = `The dashboard has not answered since ${answered.toLocaleTimeString()} (${problem.message}): the data shown are old.`;
      gone.hidden = false;
    }
  }

  async function keep() {
    if (!document.hidden) await look();
    setTimeout(keep, every);
  }

  // Light, dark, or as the system has it; remembered by this browser.
  function offerThemes() {
    const root = document.documentElement, button = document.getElementById("theme");
    const themes = ["", "light", "dark"];
    const label = () => { button.textContent = `theme: ${root.dataset.theme || "system"}`; };
    button.addEventListener("click", () => {
      const next = themes[(themes.indexOf(root.dataset.theme || "") + 1) % themes.length];
      if (next) root.dataset.theme = next; else delete root.dataset.theme;
      try { localStorage.setItem("theme", next); } catch { /* kept for this page only */ }
      label();
      draw();
    });
    label();
    button.hidden = false;
  }

  // The fields of a filter form become the address's query; empty ones are left out.
  document.addEventListener("submit", (event) => {
    const form = event.target.closest("form.filters");
    if (!form) return;
    event.preventDefault();
    const query = new URLSearchParams();
    for (const [name, value] of new FormData(form)) {
      if (value.trim() !== "") query.set(name, query.has(name) ? `${query.get(name)},${value}` : value);
    }
    // A chart keeps its range, unless a day is named.
    const now = new URLSearchParams(location.search);
    if (!query.has("to") && now.has("first")) {
      query.delete("days");
      for (const name of ["first", "stop"]) query.set(name, now.get(name));
    }
    location.assign(form.dataset.path + (query.size ? `?${query}` : ""));
  });

  // An action is sent once. Its answer may take some seconds, as long as its command starts.
  const actButtons = () => document.querySelectorAll("form.act button");
  document.addEventListener("submit", (event) => {
    if (event.target.matches("form.act")) for (const button of actButtons()) button.disabled = true;
  });
  addEventListener("pageshow", () => { for (const button of actButtons()) button.disabled = false; });

  // A video that could not be drawn: its address answers with a page that says why.
  function linkReason(image) {
    const link = document.createElement("a");
    link.href = image.src;
    link.textContent = "The video could not be drawn. Why?";
    image.closest("figure").replaceWith(link);
  }
  for (const image of document.querySelectorAll("img.video")) {
    if (image.complete && !image.naturalWidth) linkReason(image);
    else image.addEventListener("error", () => linkReason(image));
  }

  offerThemes();
  draw();
  markWide();
  addEventListener("resize", () => markWide());
  for (const media of [dark, narrow]) media.addEventListener("change", draw);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
  setTimeout(keep, every);
})();
