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
      if (figure) Plotly.react(place, ...themed(figure), { responsive: true, displayModeBar: false });
    }
  }

  const outline = (page) => [...page.querySelectorAll("[data-live], [data-figure]")].map((part) => part.id || part.dataset.figure).join();

  function update(page) {
    if (outline(page) !== outline(document)) return location.reload(); // a part has come or gone
    for (const part of page.querySelectorAll("[data-live]")) {
      const old = document.getElementById(part.id);
      if (old.innerHTML === part.innerHTML) continue;
      const places = [...old.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
      const focused = [...old.querySelectorAll("a, [tabindex]")].indexOf(document.activeElement);
      old.innerHTML = part.innerHTML;
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
    const gone = document.getElementById("gone");
    try {
      const answer = await fetch(location.href, { signal: AbortSignal.timeout(3 * every) });
      if (answer.status === 401) return location.reload(); // the server was restarted: it asks for its token
      if (!answer.ok && answer.status !== 503) throw new Error(answer.statusText);
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
    const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value.trim() !== ""));
    location.assign(form.dataset.path + (query.size ? `?${query}` : ""));
  });

  offerThemes();
  draw();
  for (const media of [dark, narrow]) media.addEventListener("change", draw);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
  setTimeout(keep, every);
})();
