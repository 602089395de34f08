// Draws the figures of a page, and updates it: requests the page again and replaces what has changed.
"use strict";
(() => {
  const every = 1000 * Number(document.body.dataset.every);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 600px)"); // no room for a legend: the table's first column is one
  const touch = matchMedia("(pointer: coarse)").matches;
  let figures = document.getElementById("figures").textContent;
  let answered = new Date();

  const colour = (tone) => getComputedStyle(document.documentElement).getPropertyValue("--" + tone).trim();

  // Plotly's figure with the page's colours, light or dark.
  function themed(figure) {
    const data = figure.data.map((trace) => ({
      ...trace,
      line: trace.line && { ...trace.line, color: colour(trace.tone) },
      marker: { ...trace.marker, color: colour(trace.tone) },
    }));
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
    layout.shapes = (layout.shapes || []).map((shape) => ({ ...shape, line: { color: colour(shape.tone), width: 1, dash: "dot" } }));
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

  draw();
  for (const media of [dark, narrow]) media.addEventListener("change", draw);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
  setTimeout(keep, every);
})();
