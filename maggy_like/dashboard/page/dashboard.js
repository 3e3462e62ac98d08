// The dashboard's page. Its state is in the address, and what it shows comes from the server as JSON.
//
// Names, parameters, tracebacks and logs come from users. They enter the page only as text nodes and as values of
// attributes that hold no code, so nothing of them is ever parsed as HTML.
"use strict";

(() => {
  const INTERVAL = 1000; // milliseconds between two looks at an active run
  const LONG_INTERVAL = 5000; // at a run that has ended
  const PER_PAGE = 50; // trials
  const MOST_KEPT = 80; // answers in memory
  const STATES = ["completed", "stopped", "paused", "failed", "running", "pending"];
  const BAD_ENDINGS = ["error", "killed", "training failed"];
  const FAIR_ENDINGS = ["completed", "timeout", "target"];

  const app = document.getElementById("app");
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const kept = new Map(); // by address: what the server answered last
  const drawn = new WeakMap(); // by holder of a plot: what is drawn in it
  let timer = null;
  let round = 0; // number of the newest look; older ones are dropped
  let lost = null; // since when the server has not answered
  let ownRun = null; // the name of the run, if the dashboard has only one

  // ---- what is in the address -----------------------------------------------------------------------------------

  const query = () => new URLSearchParams(location.search);

  /** Return the address of a place: the current one with some parameters changed. `null` removes a parameter. */
  function link(changes, isFresh = true) {
    const found = isFresh ? new URLSearchParams() : query();
    const theme = query().get("theme");
    if (isFresh && theme) found.set("theme", theme);
    for (const [name, value] of Object.entries(changes)) {
      if (value === null || value === undefined || value === "") found.delete(name);
      else found.set(name, value);
    }
    const text = found.toString();
    return text ? `?${text}` : "./";
  }

  function go(address, isReplaced = false) {
    history[isReplaced ? "replaceState" : "pushState"](null, "", address);
    if (!isReplaced) scrollTo(0, 0);
    look();
  }

  const theme = () => query().get("theme") || (prefersDark.matches ? "dark" : "light");

  // ---- what the server has --------------------------------------------------------------------------------------

  const api = (run, rest = "", asked = {}) => {
    const given = Object.entries(asked).filter(([, value]) => value !== null && value !== undefined && value !== "");
    const text = new URLSearchParams(given).toString();
    return `api/runs/${encodeURIComponent(run)}${rest && `/${rest}`}${text && `?${text}`}`;
  };

  /** Fetch an address unless nothing has changed, and return { data, tag, error }. */
  async function load(address, isText = false) {
    const known = kept.get(address);
    const headers = known && known.tag ? { "If-None-Match": known.tag } : {};
    const answer = await fetch(address, { headers, cache: "no-store", credentials: "same-origin" });
    if (answer.status === 304) return known;
    const found = { tag: answer.headers.get("ETag"), data: null, error: null };
    if (answer.ok) found.data = isText ? await answer.text() : await answer.json();
    else {
      const text = await answer.text();
      try {
        found.error = JSON.parse(text).error;
      } catch {
        found.error = text;
      }
      found.tag = null;
    }
    kept.delete(address);
    kept.set(address, found);
    if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
    return found;
  }

  const dataOf = (address) => (kept.get(address) || {}).data;

  // ---- elements -------------------------------------------------------------------------------------------------

  const isNothing = (it) => it === null || it === undefined || it === false || it === "";

  /** Make an element. Children are elements or text. */
  function h(tag, attributes, ...children) {
    const made = tag === "svg" || tag === "path" ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (!isNothing(value)) made.setAttribute(name, value === true ? "" : value);
    }
    for (const child of children.flat(Infinity)) {
      if (!isNothing(child)) made.append(child instanceof Node ? child : String(child));
    }
    return made;
  }

  /** Change `old` into `fresh`, and leave alone what is equal: selections, scroll positions and plots stay. */
  function patch(old, fresh) {
    const isSame = old.nodeType === fresh.nodeType && old.nodeName === fresh.nodeName && keyOf(old) === keyOf(fresh);
    if (!isSame) {
      old.replaceWith(fresh);
      return;
    }
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    const isPlot = old.hasAttribute("data-figure");
    for (const { name } of [...old.attributes]) {
      const isOwn = name === "open" || (isPlot && (name === "style" || name === "class"));
      if (!isOwn && !fresh.hasAttribute(name)) old.removeAttribute(name);
    }
    for (const { name, value } of [...fresh.attributes]) {
      const isOwn = name === "open" || (isPlot && name === "class");
      if (!isOwn && old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    if (isPlot || old.tagName === "INPUT" || old.tagName === "SELECT") return;
    patchChildren(old, [...fresh.childNodes]);
  }

  function patchChildren(old, fresh) {
    const isAtEnd = old.hasAttribute("data-tail") && old.scrollTop + old.clientHeight >= old.scrollHeight - 8;
    fresh.forEach((node, place) => {
      let match = old.childNodes[place] || null;
      if (match && keyOf(match) !== keyOf(node)) {
        const moved = keyOf(node) ? [...old.children].find((child) => keyOf(child) === keyOf(node)) : null;
        old.insertBefore(moved || node, match);
        match = moved || node;
      }
      if (!match) old.append(node);
      else if (match !== node) patch(match, node);
    });
    while (old.childNodes.length > fresh.length) old.lastChild.remove();
    if (isAtEnd) old.scrollTop = old.scrollHeight;
  }

  const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") || "" : "");

  // ---- text -----------------------------------------------------------------------------------------------------

  function number(value) {
    if (value === null || value === undefined) return "–";
    if (typeof value !== "number") return String(value);
    if (Number.isInteger(value) && Math.abs(value) < 1e9) return String(value);
    if (Math.abs(value) >= 1e4 && Math.abs(value) < 1e9) return value.toFixed(0);
    const rounded = Number(value.toPrecision(5));
    return rounded && Math.abs(rounded) < 1e-4 ? rounded.toExponential() : String(rounded);
  }

  function count(value) {
    return value.toLocaleString("en-US");
  }

  function duration(seconds) {
    if (seconds === null || seconds === undefined) return "–";
    const all = Math.max(0, Math.floor(seconds));
    const two = (it) => String(it).padStart(2, "0");
    const [days, hours, minutes, rest] = [Math.floor(all / 86400), Math.floor(all / 3600) % 24, Math.floor(all / 60) % 60, all % 60];
    if (days) return `${days}d ${two(hours)}:${two(minutes)}:${two(rest)}`;
    return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
  }

  const seconds = (value) => (value < 10 ? `${Number(value.toFixed(1))} s` : value < 60 ? `${value.toFixed(0)} s` : duration(value));
  const several = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;

  function date(unix) {
    const it = new Date(unix * 1000);
    const two = (part) => String(part).padStart(2, "0");
    return `${it.getFullYear()}-${two(it.getMonth() + 1)}-${two(it.getDate())} ${two(it.getHours())}:${two(it.getMinutes())}`;
  }

  const value = (it) => (typeof it === "number" ? number(it) : typeof it === "string" ? it : JSON.stringify(it));
  const configText = (config) => Object.entries(config).map(([name, it]) => `${name}=${value(it)}`).join(", ");

  // ---- pieces ---------------------------------------------------------------------------------------------------

  const dot = (state) => h("i", { class: "dot", style: `background: var(--${state === "retried" ? "pending" : state})` });
  const stateText = (state) => h("span", { class: "state" }, dot(state), state);

  function pill(words, isOver) {
    const kind = !isOver ? "active" : BAD_ENDINGS.includes(words) ? "bad" : FAIR_ENDINGS.includes(words) ? "completed" : "";
    return h("span", { class: `pill ${kind}` }, words.replaceAll("_", " "));
  }

  const trialLink = (run, id, text) => h("a", { href: link({ run, trial: id }), "data-nav": true }, text === undefined ? `trial ${id}` : text);

  function card(figure, said, kind = "") {
    return h("div", { class: `card ${kind}` }, h("b", {}, figure), h("span", {}, said));
  }

  function facts(rows) {
    return h("table", { class: "facts" }, h("tbody", {}, rows.map(([name, it]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, it)))));
  }

  const isNumeric = (cell) => /^([-+]?[\d.,]+(e[-+]?\d+)?( ?%)?|[-–])$/.test(cell);

  /** A table of texts, as the server has made it. The cells of a column "trial" are links. */
  function textTable({ head, rows, notes }, run) {
    const isRight = head.map((_, place) => rows.every((row) => isNumeric(row[place])));
    const cell = (text, place) => {
      const isTrial = head[place] === "trial" && /^\d+$/.test(text);
      return h("td", { class: isRight[place] ? "number" : "text" }, isTrial ? trialLink(run, text, text) : text);
    };
    return [
      h("div", { class: "scroll" }, h("table", { class: "fit" },
        h("thead", {}, h("tr", {}, head.map((name, place) => h("th", { class: isRight[place] ? "number" : "" }, name)))),
        h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell)))))),
      notes.map((note) => h("p", { class: "note" }, note)),
    ];
  }

  /** A plot. Its title and note are text of the page. */
  function plot(run, name, { asked = {}, isWide = false, title = null, tools = null } = {}) {
    const address = api(run, `figures/${name}`, asked);
    const found = kept.get(address) || {};
    const { data } = found;
    return h("section", { "data-key": address },
      title !== "" && h("h2", {}, title || (data ? data.title : "")),
      tools,
      h("p", { class: "note" }, data ? data.note : found.error || ""),
      h("div", { class: "scroll" },
        h("div", { class: `figure${isWide ? " wide" : ""}`, "data-figure": address, "data-run": run, hidden: (data && !data.figure) || found.error ? true : null })));
  }

  function failure(it, extra) {
    return h("details", { open: extra.isOpen },
      h("summary", {}, h("span", { class: "kind" }, it.kind.replaceAll("_", " ")), " ", extra.said, it.message),
      extra.trials,
      h("pre", {}, [it.traceback || it.message, extra.hint].filter(Boolean).join("\n")));
  }

  function sparkline(points) {
    if (!points || points.length < 2) return h("span", { class: "soft" }, "");
    const [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => y)];
    const scale = (all, size) => {
      const [low, high] = [Math.min(...all), Math.max(...all)];
      return (it) => (high > low ? ((it - low) / (high - low)) * size : size / 2);
    };
    const [x, y] = [scale(xs, 116), scale(ys, 24)];
    let path = `M${(x(xs[0]) + 2).toFixed(1)} ${(26 - y(ys[0])).toFixed(1)}`;
    for (let place = 1; place < points.length; place += 1) {
      path += `H${(x(xs[place]) + 2).toFixed(1)}V${(26 - y(ys[place])).toFixed(1)}`;
    }
    return h("svg", { class: "spark", viewBox: "0 0 120 28", role: "img", "aria-label": "best value over time" }, h("path", { d: path }));
  }

  // ---- the list of runs -----------------------------------------------------------------------------------------

  const wanted = new Set(); // runs whose small curves are to be fetched

  function listPage() {
    const { data, error } = kept.get("api/runs") || {};
    if (!data) return [h("p", { class: "empty" }, error || "Loading…")];
    document.title = `runs · maggy_like`;
    wanted.clear();
    if (!data.runs.length) {
      return [h("p", { class: "empty" }, "There are no runs in ", h("code", {}, data.directory), " yet. They appear here as they begin.")];
    }
    const row = (run) => {
      const href = link({ run: run.name });
      const name = h("td", { class: "text" }, h("a", { href, "data-nav": true }, run.name));
      if (run.created === null) return h("tr", {}, name, h("td", { class: "text", colspan: 7 }, `cannot be read: ${run.problem}`));
      wanted.add(run.name);
      const curve = dataOf(api(run.name, "curve"));
      const state = run.training === "failed" && FAIR_ENDINGS.includes(run.state) ? "training failed" : run.state;
      return h("tr", { "data-go": href },
        name,
        h("td", {}, pill(state, run.is_over)),
        h("td", { class: "number" }, run.trials || run.training === null ? count(run.trials) : "training",
          run.failed ? h("span", { class: "soft" }, ` (${count(run.failed)} failed)`) : ""),
        h("td", { class: "nowrap" }, h("b", {}, number(run.best_value)), " ", h("span", { class: "soft" }, run.objective)),
        h("td", {}, sparkline(curve)),
        h("td", { class: "number optional" }, run.state === "reading" ? "–" : duration(run.seconds), run.is_longer ? " or more" : ""),
        h("td", { class: "nowrap optional" }, date(run.created)),
        h("td", { class: "text optional soft" }, run.best_config ? configText(run.best_config) : ""));
    };
    const head = [["run"], ["state"], ["trials", "number"], ["best"], ["over time"], ["time", "number optional"], ["begun", "optional"],
      ["best configuration", "optional"]];
    return [
      h("h1", { "data-key": "title" }, "Runs"),
      h("p", { class: "soft" }, `${several(data.runs.length, "run")} in `, h("code", {}, data.directory)),
      h("div", { class: "scroll" }, h("table", { class: "runs" },
        h("thead", {}, h("tr", {}, head.map(([name, kind]) => h("th", { class: kind || "" }, name)))),
        h("tbody", {}, data.runs.map(row)))),
    ];
  }

  /** Fetch small curves one after the other, since each may read a whole journal. */
  async function loadCurves(now) {
    const active = new Set((dataOf("api/runs") || { runs: [] }).runs.filter((run) => !run.is_over).map((run) => run.name));
    for (const name of [...wanted]) {
      if (now !== round) return;
      const address = api(name, "curve");
      if (!active.has(name) && dataOf(address)) continue;
      await load(address);
      if (now === round) render();
    }
  }

  // ---- a run ----------------------------------------------------------------------------------------------------

  const TABS = {
    overview: { title: "Overview", needs: ["details"], show: overview },
    trials: { title: "Trials", needs: [], show: trialsTab },
    curves: { title: "Curves", needs: [], show: curvesTab },
    parameters: { title: "Parameters", needs: [], show: parametersTab },
    workers: { title: "Workers", needs: [], show: workersTab },
    log: { title: "Log", needs: ["log"], show: logTab },
    decisions: { title: "Decisions", needs: ["decisions"], show: decisionsTab },
    settings: { title: "Settings", needs: ["details"], show: settingsTab },
  };

  const tabOf = () => (query().get("tab") in TABS ? query().get("tab") : "overview");

  function runPage(name) {
    const found = kept.get(api(name)) || {};
    if (!found.data) return [h("p", { class: "empty" }, found.error || "Reading the run…")];
    const run = found.data;
    const tab = tabOf();
    const goal = run.objectives.map((each) => `${each.direction} ${each.name}`).join(", ");
    document.title = `${run.is_over ? "" : "● "}${run.best ? `${number(run.best.values[0])} · ` : ""}${run.name}`;
    const isHidden = (key) => key === "parameters" && !run.figures.includes("slices");
    return [
      h("div", { class: "head", "data-key": "head" }, h("h1", {}, run.name), pill(run.words, run.is_over),
        h("span", { class: "soft", title: run.optimizer }, `${goal}, by ${run.optimizer.split("(")[0]}`)),
      run.is_reading && h("p", { class: "note" }, `Reading the journal: ${several(run.trials, "trial")} so far…`),
      h("nav", { class: "tabs", "aria-label": "parts of the run" }, Object.entries(TABS).filter(([key]) => !isHidden(key)).map(([key, { title }]) =>
        h("a", { href: link({ run: name, tab: key === "overview" ? null : key }), "data-nav": true, "aria-current": key === tab ? "page" : null }, title))),
      h("div", { "data-key": tab }, TABS[tab].show(name, run)),
    ];
  }

  function countsCard(name, run) {
    const all = run.trials;
    const present = STATES.filter((state) => run.counts[state]);
    const of = run.n_trials ? ` of ${count(run.n_trials)}` : "";
    return h("div", { class: "card wide counts" }, h("b", {}, `${count(all)}${of} `, h("small", { class: "soft" }, all === 1 ? "trial" : "trials")),
      h("div", { class: "bar", "aria-hidden": "true" }, present.map((state) => h("i", { style: `flex: ${run.counts[state]}; background: var(--${state})` }))),
      h("span", { class: "legend" }, present.map((state) =>
        h("a", { href: link({ run: name, tab: "trials", state }), "data-nav": true }, dot(state), `${count(run.counts[state])} ${state}`))));
  }

  function cards(name, run, details) {
    const made = [];
    const [goal] = run.objectives;
    if (run.objectives.length > 1) made.push(card(count(run.n_pareto), "trials in the Pareto set", "best"));
    else if (run.best) {
      const at = run.best.value_step === null ? "" : ` at step ${run.best.value_step}`;
      made.push(card(number(run.best.values[0]), [`best ${goal.name}${at}, `, trialLink(name, run.best.trial)], "best"));
    } else if (run.training && !run.trials) made.push(card(number(run.training.values[0]), goal.name, "best"));
    if (run.trials || !run.training) made.push(countsCard(name, run));
    const asOf = run.is_over ? 0 : sinceLoaded(api(name));
    made.push(card([duration(run.seconds + asOf), run.is_longer ? " or more" : ""], run.is_over ? "wall time" : "since the start"));
    if (details && details.busy !== null) {
      made.push(card(`${(100 * details.busy).toFixed(1)} %`, details.workers > 1 ? `${details.workers} workers busy` : "one worker busy"));
    }
    if (details && details.saved_seconds > 0) {
      made.push(card(duration(details.saved_seconds), `of workers' time saved by early stops: ${(100 * details.saved_share).toFixed(0)} % of full trainings`));
    }
    return h("div", { class: "cards" }, made);
  }

  const loadedAt = new Map(); // by address: its tag, and when that came
  function sinceLoaded(address) {
    const { tag } = kept.get(address) || {};
    const known = loadedAt.get(address);
    if (!known || known.tag !== tag) loadedAt.set(address, { tag, at: performance.now() });
    return (performance.now() - loadedAt.get(address).at) / 1000;
  }

  function overview(name, run) {
    const details = dataOf(api(name, "details"));
    const has = (figure) => run.figures.includes(figure);
    return [
      cards(name, run, details),
      details && details.damage.length > 0 && h("p", { class: "banner" }, `The journal is damaged, so only its intact part is shown: ${details.damage.join("; ")}`),
      details && details.ablation && [plot(name, "differences"), h("section", { "data-key": "ablation" }, textTable(details.ablation, name))],
      h("div", { class: "columns", "data-key": "columns" },
        h("div", {}, has("pareto") && plot(name, "pareto"), has("history") && plot(name, "history"), runningNow(name, run)),
        h("div", {}, bestConfiguration(name, run, details))),
      run.training && h("section", { "data-key": "training" }, h("h2", {}, "Training"), h("p", {}, run.training.line, " ", trialLink(name, run.training.trial, "all about it")),
        run.training.url && h("p", { class: "note" }, "Its state: ", h("code", {}, run.training.url))),
      has("training") && plot(name, "training", { title: "" }),
      run.confirmed && h("section", { "data-key": "confirmed" }, h("h2", {}, "Confirmation"), textTable(run.confirmed, name)),
      details && failures(name, details),
    ];
  }

  function bestConfiguration(name, run, details) {
    if (run.objectives.length > 1) {
      return h("section", { "data-key": "best" }, h("h2", {}, "Pareto set"), trialTable(name, run, run.pareto, {}));
    }
    if (!run.best) return run.finds_best && run.trials ? h("section", { "data-key": "best" }, h("h2", {}, "Best configuration"), h("p", { class: "soft" }, "No trial has a value yet.")) : null;
    const metrics = Object.entries(run.best.metrics);
    return h("section", { "data-key": "best" }, h("h2", {}, "Best configuration"),
      facts(Object.entries(run.best.config).map(([key, it]) => [key, value(it)])),
      metrics.length > 0 && h("p", { class: "note" }, `Its newest other metrics: ${configText(run.best.metrics)}`),
      run.best.url
        ? [h("p", { class: "note" }, "Its state: ", h("code", {}, run.best.url)), h("pre", { class: "wrap" }, run.best.load)]
        : h("p", { class: "note" }, "It saved no state. Call ", h("code", {}, "reporter.checkpoint(state)"), " to keep one."),
      details && details.recommended.map((line) => h("p", { class: "note" }, line)));
  }

  function runningNow(name, run) {
    if (run.is_over) return null;
    const asOf = sinceLoaded(api(name));
    return h("section", { "data-key": "running" }, h("h2", {}, "Running now"),
      run.running.length === 0 && h("p", { class: "soft" }, "No trial is running."),
      run.running.length > 0 && h("div", { class: "scroll" }, h("table", {},
        h("thead", {}, h("tr", {}, [["trial"], ["worker", "number"], ["step"], ["newest", "number"], ["time", "number"], ["configuration", "optional"]].map(([it, kind]) => h("th", { class: kind || "" }, it)))),
        h("tbody", {}, run.running.map((trial) => h("tr", { "data-go": link({ run: name, trial: trial.trial }) },
          h("td", {}, trialLink(name, trial.trial, trial.trial)),
          h("td", { class: "number" }, number(trial.worker)),
          h("td", { class: "nowrap" }, progress(trial)),
          h("td", { class: "number" }, number(trial.newest)),
          h("td", { class: "number" }, duration(trial.running + asOf)),
          h("td", { class: "config optional" }, configText(trial.config))))))),
      run.n_running > run.running.length && h("p", { class: "note" }, `and ${count(run.n_running - run.running.length)} more`));
  }

  function progress(trial) {
    if (!trial.budget) return String(trial.step);
    const share = Math.min(100, (100 * trial.step) / trial.budget);
    return [h("span", { class: "track", "aria-hidden": "true" }, h("i", { style: `width: ${share.toFixed(1)}%` })), `${trial.step} of ${trial.budget}`];
  }

  function failures(name, details) {
    if (!details.failed_attempts) return null;
    const said = `${several(details.failed_attempts, "attempt")} failed or ${details.failed_attempts === 1 ? "was" : "were"} lost; ${several(details.failed_trials, "trial")} failed in the end.`;
    return h("section", { "data-key": "failures", id: "failures" }, h("h2", {}, "Failures"), h("p", {}, said),
      details.failures.map((it, place) => failure(it, {
        isOpen: place === 0,
        said: `${it.attempts} ${it.attempts === 1 ? "time" : "times"}: `,
        hint: it.hint,
        trials: h("p", { class: "trials" }, it.trials.map((trial) => trialLink(name, trial)), it.n_trials > it.trials.length && `and ${count(it.n_trials - it.trials.length)} more`),
      })),
      details.more_causes > 0 && h("p", { class: "note" }, `and ${details.more_causes} more causes`));
  }

  // ---- its trials -----------------------------------------------------------------------------------------------

  /** Return the column by which trials are sorted, and "asc" or "desc". The best come first by default. */
  function sorting(run) {
    const [goal] = run.objectives;
    const usual = run.finds_best && run.objectives.length === 1 ? `value-${goal.direction === "min" ? "asc" : "desc"}` : "trial-asc";
    return (query().get("sort") || usual).split(/-(?=(?:asc|desc)$)/);
  }

  const asked = (run) => {
    const given = query();
    const [sort, order] = sorting(run);
    return { state: given.get("state"), q: given.get("q"), sort, order, offset: Number(given.get("from")) || null, limit: PER_PAGE };
  };

  function trialsTab(name, run) {
    const given = query();
    const found = kept.get(api(name, "trials", asked(run))) || {};
    const chosen = new Set((given.get("state") || "").split(",").filter(Boolean));
    const chip = (state) => {
      const next = new Set(chosen);
      if (!next.delete(state)) next.add(state);
      return h("button", { class: "chip", type: "button", "aria-pressed": String(chosen.has(state)), "data-to": link({ state: [...next].join(","), from: null }, false) },
        dot(state), `${count(run.counts[state] || 0)} ${state}`);
    };
    const data = found.data;
    const from = Number(given.get("from")) || 0;
    return [
      h("div", { class: "tools" },
        STATES.filter((state) => run.counts[state] || chosen.has(state)).map(chip),
        h("input", { type: "search", placeholder: "number, or part of a configuration", "aria-label": "search trials", "data-param": "q", value: given.get("q") || "" })),
      found.error && h("p", { class: "banner" }, found.error),
      data && trialTable(name, run, data.trials, { isSorted: true }),
      data && data.total === 0 && h("p", { class: "soft" }, "No trial matches."),
      data && h("div", { class: "more" },
        h("button", { type: "button", disabled: from === 0, "data-to": link({ from: Math.max(0, from - PER_PAGE) || null }, false) }, "Previous"),
        h("span", { class: "soft" }, data.total ? `${count(from + 1)} to ${count(Math.min(data.total, from + PER_PAGE))} of ${count(data.total)}` : ""),
        h("button", { type: "button", disabled: from + PER_PAGE >= data.total, "data-to": link({ from: from + PER_PAGE }, false) }, "Next")),
    ];
  }

  const MOST_COLUMNS = 8; // parameters with a column each; more are shown together

  function trialTable(name, run, trials, { isSorted = false }) {
    const params = run.parameters.length <= MOST_COLUMNS && isSorted ? run.parameters : null;
    const [by, order] = sorting(run);
    const head = (key, text, kind = "", isBestLow = true) => {
      if (!isSorted) return h("th", { class: kind }, text);
      const isBy = by === key;
      const next = isBy ? (order === "asc" ? "desc" : "asc") : isBestLow ? "asc" : "desc";
      const sort = isBy ? (order === "asc" ? "ascending" : "descending") : null;
      return h("th", { class: kind, "aria-sort": sort }, h("button", { type: "button", "data-to": link({ sort: `${key}-${next}`, from: null }, false) },
        text, isBy ? (order === "asc" ? " ↑" : " ↓") : ""));
    };
    const isNumber = (param) => trials.every(({ config }) => !(param in config) || typeof config[param] === "number");
    const right = new Set((params || []).filter(isNumber));
    return h("div", { class: "scroll" }, h("table", { class: "trials-table" },
      h("thead", {}, h("tr", {},
        head("trial", "trial", "number"),
        isSorted && head("state", "state"),
        run.objectives.map((each, place) => head(place ? `value:${place}` : "value", each.name, "number", each.direction === "min")),
        isSorted && [head("step", "step", "number"), head("seconds", "time", "number optional"), head("attempts", "attempts", "number optional")],
        params ? params.map((param) => head(`config:${param}`, param, right.has(param) ? "number" : "")) : h("th", {}, "configuration"))),
      h("tbody", {}, trials.map((trial) => h("tr", { "data-go": link({ run: name, trial: trial.trial }) },
        h("td", { class: "number" }, trialLink(name, trial.trial, trial.trial)),
        isSorted && h("td", { title: trial.failure }, stateText(trial.state)),
        trial.values.map((it) => h("td", { class: "number" }, number(it))),
        isSorted && [h("td", { class: "number" }, number(trial.step)), h("td", { class: "number optional" }, seconds(trial.seconds)), h("td", { class: "number optional" }, trial.attempts)],
        params
          ? params.map((param) => h("td", { class: right.has(param) ? "number" : "text" }, param in trial.config ? value(trial.config[param]) : "–"))
          : h("td", { class: "config" }, configText(trial.config)))))));
  }

  // ---- its other parts ------------------------------------------------------------------------------------------

  function curvesTab(name, run) {
    const by = query().get("by");
    const tools = run.parameters.length > 0 && h("div", { class: "tools" }, h("label", {}, "Color by ",
      h("select", { "data-param": "by", "data-key": `by-${run.parameters.length}` }, h("option", { value: "" }, "state"),
        run.parameters.map((param) => h("option", { value: param, selected: param === by }, param)))));
    return plot(name, "curves", { asked: { by }, tools });
  }

  function parametersTab(name) {
    return [plot(name, "importance"), plot(name, "slices", { isWide: true }), plot(name, "parallel", { isWide: true })];
  }

  function workersTab(name) {
    return plot(name, "workers");
  }

  function logTab(name) {
    const data = dataOf(api(name, "log"));
    if (!data) return h("p", { class: "soft" }, "Loading…");
    return [
      data.driver.length > 0 && h("section", { "data-key": "driver" }, h("h2", {}, "Driver"), h("pre", { "data-tail": true }, data.driver.join("\n"))),
      data.trials.length === 0 && h("p", { class: "soft" }, "No trial has started."),
      data.trials.map((each) => h("section", { "data-key": `log-${each.trial}` },
        h("h2", {}, trialLink(name, each.trial), " ", h("small", { class: "soft" }, each.state)),
        each.lines.length ? h("pre", { "data-tail": true }, each.lines.join("\n")) : h("p", { class: "soft" }, "It has printed nothing."))),
      data.more > 0 && h("p", { class: "note" }, `and ${several(data.more, "running trial")} more`),
    ];
  }

  function decisionsTab(name) {
    const data = dataOf(api(name, "decisions"));
    if (!data) return h("p", { class: "soft" }, "Loading…");
    const shown = data.decisions.length;
    return [
      h("p", { class: "note" }, `Why each trial was created, promoted, stopped or retried: ${shown < data.total ? `the newest ${count(shown)} of ` : ""}${several(data.total, "decision")}, the newest first.`),
      h("ol", { class: "plain" }, data.decisions.map(([at, trial, text]) => h("li", {}, h("time", {}, seconds(at)), h("span", {}, trialLink(name, trial), ` ${text}`)))),
    ];
  }

  function settingsTab(name) {
    const data = dataOf(api(name, "details"));
    if (!data) return h("p", { class: "soft" }, "Loading…");
    return [
      data.space.length > 0 && h("section", { "data-key": "space" }, h("h2", {}, "Search space"), facts(data.space)),
      h("section", { "data-key": "environment" }, h("h2", {}, "Environment"), facts(data.environment)),
    ];
  }

  // ---- a trial --------------------------------------------------------------------------------------------------

  function trialPage(name, id) {
    const found = kept.get(api(name, `trials/${id}`)) || {};
    const { data: run } = kept.get(api(name)) || {};
    if (!found.data || !run) return [h("p", { class: "empty" }, found.error || "Reading the trial…")];
    const trial = found.data;
    document.title = `trial ${id} · ${name}`;
    const step = (by) => {
      const to = trial.trial + by;
      const isThere = to >= 0 && to <= trial.last;
      return h("button", { type: "button", disabled: !isThere, "data-to": isThere ? link({ run: name, trial: to }) : null }, by < 0 ? "← Previous" : "Next →");
    };
    const goal = run.objectives;
    const at = trial.value_step === null ? "" : ` at step ${trial.value_step}`;
    const budget = trial.budget ? ` of ${trial.budget}` : "";
    const failed = trial.all_attempts.filter((each) => each.failure && each.failure.kind !== "driver_lost"); // else it was interrupted
    return [
      h("div", { class: "head", "data-key": "head" }, h("h1", {}, `Trial ${trial.trial}`), h("span", { class: `pill ${trial.state === "running" ? "active" : trial.state}` }, trial.state),
        trial.is_best && h("span", { class: "tag" }, goal.length > 1 ? "in the Pareto set" : "the best trial"),
        h("span", { style: "flex: 1" }), step(-1), step(1)),
      h("div", { class: "cards", style: "margin-top: 1rem", "data-key": "cards" },
        goal.map((each, place) => card(number(trial.values[place]), `${each.name}${goal.length > 1 ? "" : at}`, trial.is_best ? "best" : "")),
        card([`${trial.step}`, h("small", { class: "soft" }, budget)], "steps"),
        card(seconds(trial.seconds), "running time"),
        card(count(trial.attempts), trial.attempts === 1 ? "attempt" : "attempts")),
      failed.length > 0 && h("section", { "data-key": "failures" }, h("h2", {}, trial.state === "failed" ? "Why it failed" : "Failed attempts"),
        failed.map((each, place) => failure(each.failure, { isOpen: place === failed.length - 1, said: `in attempt ${each.number}: `, hint: trial.hint }))),
      h("div", { class: "columns", "data-key": "columns" },
        h("div", {},
          plot(name, "trial", { asked: { trial: id }, title: "Curves" }),
          h("section", { "data-key": "why" }, h("h2", {}, "What happened, and why"),
            h("ol", { class: "plain" }, trial.decisions.map(([when, text]) => h("li", {}, h("time", {}, seconds(when)), h("span", {}, text))))),
          attempts(trial)),
        h("div", {},
          h("section", { "data-key": "config" }, h("h2", {}, "Configuration"),
            facts(Object.entries(trial.config).map(([key, it]) => [key, value(it)])),
            trial.parent !== null && h("p", { class: "note" }, "It started from the state of ", trialLink(name, trial.parent), "."),
            trial.repeats !== null && h("p", { class: "note" }, "It repeats ", trialLink(name, trial.repeats), " with another seed.")),
          (Object.keys(trial.metrics).length > 0 || Object.keys(trial.attributes).length > 0) && h("section", { "data-key": "metrics" }, h("h2", {}, "Other values"),
            facts([...Object.entries(trial.metrics).map(([key, it]) => [key, number(it)]), ...Object.entries(trial.attributes).map(([key, it]) => [key, value(it)])])),
          h("section", { "data-key": "states" }, h("h2", {}, "Saved states"),
            trial.states.length ? [facts(trial.states.map((each) => [`${each.what}, step ${each.step}`, h("code", {}, each.url)])), h("pre", { class: "wrap" }, trial.load)] : h("p", { class: "soft" }, "It saved no state.")),
          files(name, trial),
          trial.hint && failed.length === 0 && h("section", { "data-key": "debug" }, h("h2", {}, "Run it again"), h("pre", { class: "wrap" }, trial.hint)))),
      trialLog(name, trial),
    ];
  }

  function files(name, trial) {
    const data = dataOf(api(name, `trials/${trial.trial}/files`));
    if (!data || (!data.total && !data.left_out.length)) return null;
    const address = (path) => api(name, `trials/${trial.trial}/files/${path.split("/").map(encodeURIComponent).join("/")}`);
    return h("section", { "data-key": "files" }, h("h2", {}, "Files"),
      h("table", { class: "facts" }, h("tbody", {}, data.files.map((each) => h("tr", {},
        h("td", { class: "text" }, h("a", { href: address(each.name), target: "_blank", rel: "noopener" }, each.name)),
        h("td", { class: "number" }, size(each.size)))))),
      data.total > data.files.length && h("p", { class: "note" }, `and ${count(data.total - data.files.length)} others`),
      data.left_out.map((each) => h("p", { class: "note" }, `not kept: ${each}`)));
  }

  function size(bytes) {
    const [unit, factor] = [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]].find(([, each]) => bytes >= each) || ["bytes", 1];
    return `${factor > 1 ? (bytes / factor).toFixed(1) : bytes} ${unit}`;
  }

  function attempts(trial) {
    if (!trial.all_attempts.length) return null;
    return h("section", { "data-key": "attempts" }, h("h2", {}, "Attempts"), h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, [["attempt", "number"], ["workers"], ["began", "number"], ["time", "number"], ["steps", "number"], ["ended"]].map(([it, kind]) => h("th", { class: kind || "" }, it)))),
      h("tbody", {}, trial.all_attempts.map((each) => h("tr", {},
        h("td", { class: "number" }, each.number),
        h("td", {}, each.workers.join(", ")),
        h("td", { class: "number" }, seconds(each.begin)),
        h("td", { class: "number" }, seconds(each.seconds)),
        h("td", { class: "number" }, each.steps.join(" to ")),
        h("td", { class: "text" }, stateText(each.state), each.failure && `: ${each.failure.message}`)))))));
  }

  function trialLog(name, trial) {
    const rank = query().get("rank");
    const address = api(name, `trials/${trial.trial}/log`, { rank });
    const { data, error } = kept.get(address) || {};
    const whole = api(name, `trials/${trial.trial}/log`, { rank, whole: 1 });
    return h("section", { "data-key": "log" }, h("h2", {}, "Log"),
      h("div", { class: "tools" },
        trial.ranks > 1 && h("label", {}, "Rank ", h("select", { "data-param": "rank", "data-key": `rank-${trial.ranks}` },
          [...Array(trial.ranks).keys()].map((each) => h("option", { value: each || "", selected: String(each) === rank }, each)))),
        data && h("a", { href: whole, target: "_blank", rel: "noopener" }, "Whole log")),
      error ? h("p", { class: "banner" }, error) : data === undefined || data === null ? h("p", { class: "soft" }, "Loading…") : data
        ? h("pre", { "data-tail": true }, data) : h("p", { class: "soft" }, "It has printed nothing."));
  }

  // ---- plots ----------------------------------------------------------------------------------------------------

  let plotly = null; // a promise of the library

  function library() {
    plotly = plotly || new Promise((done, fail) => {
      const script = h("script", { src: "plotly.js" });
      script.onload = () => done(window.Plotly);
      script.onerror = () => { plotly = null; fail(new Error("plotly.js cannot be loaded")); };
      document.head.append(script);
    });
    return plotly;
  }

  /** Draw the plots of the page that are new or have changed. Zooms and selections stay. */
  async function drawPlots(now) {
    const holders = [...app.querySelectorAll("[data-figure]")];
    if (!holders.length) return;
    const isDark = theme();
    const [templates, ...answers] = await Promise.all([
      dataOf("api/templates") || load("api/templates").then((answer) => answer.data), ...holders.map((holder) => load(holder.dataset.figure))]);
    if (now !== round) return;
    render(); // titles and notes
    for (const [place, holder] of holders.entries()) {
      const { data, tag } = answers[place] || {};
      const before = drawn.get(holder);
      if (!holder.isConnected || !data || !data.figure || (before && before.tag === tag && before.theme === isDark)) continue;
      const Plotly = await library();
      if (now !== round || !holder.isConnected) return;
      const layout = { ...data.figure.layout, template: templates[isDark], uirevision: holder.dataset.figure };
      for (const [name, axis] of Object.entries(layout)) { // else plotly keeps the end of a range that is given no more
        const isFree = /^[xy]axis\d*$/.test(name) && axis.range === undefined && axis.autorange === undefined;
        if (isFree) layout[name] = { ...axis, autorange: true };
      }
      holder.style.height = `${layout.height}px`;
      const removed = ["select2d", "lasso2d", "autoScale2d"];
      const options = { responsive: true, displaylogo: false, showSendToCloud: false, modeBarButtonsToRemove: removed };
      await Plotly.react(holder, data.figure.data, layout, options);
      if (!before) {
        holder.on("plotly_click", ({ points }) => {
          const trial = points.length ? points[0].customdata : null;
          if (Number.isInteger(trial)) go(link({ run: holder.dataset.run, trial }));
        });
      }
      drawn.set(holder, { tag, theme: isDark });
      holder.dataset.drawn = tag;
    }
  }

  // ---- the page -------------------------------------------------------------------------------------------------

  const runOf = () => query().get("run") || ownRun;

  function render() {
    document.documentElement.dataset.theme = theme();
    const run = runOf();
    const trial = query().get("trial");
    const page = run === null ? listPage() : trial !== null ? trialPage(run, trial) : runPage(run);
    const crumb = (text, href) => [h("span", { class: "soft" }, "/"), href ? h("a", { href, "data-nav": true }, text) : h("span", {}, text)];
    const isDark = theme() === "dark";
    const live = lost ? h("span", { class: "live no", role: "status" }, "no connection") : h("span", { class: "live yes", role: "status" }, "live");
    const top = h("header", { class: "top", "data-key": "top" },
      h("span", { class: "crumbs" },
        ownRun ? h("span", {}, "maggy_like") : h("a", { href: link({}), "data-nav": true }, "maggy_like"),
        !ownRun && run !== null && crumb("runs", link({})),
        run !== null && crumb(run, trial !== null ? link({ run: ownRun ? null : run }) : null),
        trial !== null && crumb(`trial ${trial}`, null)),
      live,
      h("button", { type: "button", "data-theme-to": isDark ? "light" : "dark", title: "switch between light and dark" }, isDark ? "Light" : "Dark"));
    const banner = lost && h("p", { class: "banner", "data-key": "lost" }, `The dashboard has not answered since ${lost.toLocaleTimeString()}: ${lostReason}. What is shown may be old.`);
    const key = `${run} ${trial}`;
    const main = h("main", { "data-key": key }, page);
    const isFirst = !app.querySelector("header");
    if (isFirst) app.replaceChildren(top, main);
    else patchChildren(app, [top, ...(banner ? [banner] : []), main]);
    for (const input of app.querySelectorAll("input[data-param]")) {
      if (document.activeElement !== input) input.value = query().get(input.dataset.param) || "";
    }
  }

  let lostReason = "";

  /** Return the addresses that the current page shows. */
  function needs() {
    const run = runOf();
    if (run === null) return [["api/runs"]];
    const trial = query().get("trial");
    if (trial !== null) {
      const its = `trials/${encodeURIComponent(trial)}`;
      return [[api(run, its)], [api(run, `${its}/files`)], [api(run, `${its}/log`, { rank: query().get("rank") }), true]];
    }
    const tab = tabOf();
    const found = TABS[tab].needs.map((part) => [api(run, part)]);
    const known = dataOf(api(run)); // the default order depends on the run
    return tab === "trials" && known ? [...found, [api(run, "trials", asked(known))]] : found;
  }

  /** Fetch what the page shows, show it, and look again later. */
  async function look() {
    clearTimeout(timer);
    round += 1;
    const now = round;
    render();
    let isOver = false;
    try {
      if (query().get("run") === null && ownRun === null) {
        const { data } = await load("api/runs");
        if (data && data.run !== null) ownRun = data.run;
      }
      if (runOf() !== null) await load(api(runOf()));
      await Promise.all(needs().map(([address, isText]) => load(address, isText)));
      if (now !== round) return;
      if (lost) lost = null;
      render();
      await drawPlots(now);
      const run = runOf();
      if (run === null) await loadCurves(now);
      else isOver = (dataOf(api(run)) || {}).is_over;
    } catch (error) {
      if (now !== round) return;
      lost = lost || new Date();
      lostReason = error.message;
      render();
    }
    if (now === round && !document.hidden) timer = setTimeout(look, isOver ? LONG_INTERVAL : INTERVAL);
  }

  addEventListener("click", (event) => {
    const isPlain = event.button === 0 && !(event.metaKey || event.ctrlKey || event.shiftKey || event.altKey);
    const nav = event.target.closest("a[data-nav]");
    if (nav && isPlain) {
      event.preventDefault();
      go(nav.getAttribute("href"));
      return;
    }
    const button = event.target.closest("button[data-to]");
    if (button) {
      go(button.dataset.to, button.closest("th, .tools") !== null);
      return;
    }
    const switched = event.target.closest("[data-theme-to]");
    if (switched) {
      go(link({ theme: switched.dataset.themeTo }, false), true);
      return;
    }
    const row = event.target.closest("tr[data-go]");
    if (row && isPlain && !event.target.closest("a") && !String(getSelection())) go(row.dataset.go);
  });
  addEventListener("change", (event) => {
    const { param } = event.target.dataset;
    if (param) go(link({ [param]: event.target.value }, false), true);
  });
  addEventListener("input", (event) => {
    if (event.target.dataset.param === "q") go(link({ q: event.target.value, from: null }, false), true);
  });
  addEventListener("popstate", look);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
  prefersDark.addEventListener("change", look);
  look();
})();
