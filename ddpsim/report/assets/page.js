"use strict";
// Timelines of the report: one step above the other on one axis of time, drawn from the data that the page holds.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const GUTTER = 34, AXIS = 20, LANE = 22, TICKS = 8, PATH = 18, LEAST_US = 5;
  const LIVES = [["queued", "ready, not started"], ["skew", "waiting for ranks"], ["wire", "on the wire"], ["done", "done, until written back"]];
  const PARTS = {"forward": "forward", "backward": "backward", "optimizer": "optimizer", "wait": "wait", "buffer broadcast": "buffer-broadcast"};
  const CAUSES = {"host launches": "host", "hooks and copies of DDP": "ddp", "communication latency": "latency", "bandwidth between nodes": "between", "bandwidth inside a node": "inside", "what the ends of a message keep up with": "ends"};
  const report = JSON.parse(document.getElementById("report").textContent);

  function made(parent, tag, attributes = {}, text = null) {
    const one = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) one.setAttribute(name, value);
    if (text !== null) one.textContent = text;
    parent.appendChild(one);
    return one;
  }

  const ms = (us) => (us / 1e3).toFixed(Math.abs(us) < 1e4 ? 3 : 2) + " ms";
  const mib = (bytes) => (bytes / 1048576).toFixed(2) + " MiB";

  function lifeOf(step, row) {
    const life = {};
    step.columns.forEach((name, number) => { life[name] = row[number]; });
    life.moving_us = life.wire_us === null ? life.started_us : life.wire_us;
    life.spans = {
      queued: [life.ready_us, Math.max(life.ready_us, life.started_us)],
      skew: [life.started_us, Math.max(life.started_us, life.moving_us)],
      wire: [life.moving_us, life.finished_us],
      done: [life.finished_us, life.written_us],
    };
    return life;
  }

  function told(step, life) {
    const width = (name) => ms(Math.max(0, life.spans[name][1] - life.spans[name][0]));
    const gradients = life.parameters === null ? "" : `, ${life.parameters} gradient${life.parameters === 1 ? "" : "s"}`;
    return `Bucket ${life.bucket} (${step.label}): ${mib(life.size_bytes)} (${life.size_bytes.toLocaleString("en-US")} B)${gradients}; ` +
      `ready at ${ms(life.ready_us)}, launched by the host at ${ms(life.launched_us)}, waited ${width("queued")} for its turn and ` +
      `${width("skew")} for ranks, ${width("wire")} on the wire until ${ms(life.finished_us)}, written at ${ms(life.written_us)}.`;
  }

  class Timeline {
    constructor(root) {
      this.root = root;
      this.section = report.sections[Number(root.dataset.section)];
      this.steps = root.querySelector(".steps");
      this.said = root.querySelector(".told");
      this.choice = root.querySelector(".choice");
      this.choice.addEventListener("change", () => this.choose());
      for (const button of root.querySelectorAll("button"))
        button.addEventListener("click", () => this.act(button.dataset.act));
      this.pointers = new Map();
      root.hidden = false;
      this.choice.parentElement.hidden = this.section.choices.length < 2;
      this.choose();
      let width = root.clientWidth;
      new ResizeObserver(() => {
        if (root.clientWidth !== width) { width = root.clientWidth; this.draw(); }
      }).observe(root);
    }

    choose() {
      const chosen = this.section.choices[Number(this.choice.value)].steps;
      this.picked = null;
      this.panels = chosen.map((step) => ({step, lives: step.buckets.map((row) => lifeOf(step, row))}));
      this.end = Math.max(...this.panels.map(({step, lives}) =>
        Math.max(step.iteration_us, ...lives.map((life) => life.written_us))));
      this.start = 0;
      const most = Math.max(1, ...chosen.map((step) => step.buckets.length));
      this.row = Math.min(16, Math.max(4, Math.floor(380 / most)));
      this.view = [this.start, this.end];
      this.steps.replaceChildren(...this.panels.map((panel, number) => this.frame(panel, number)));
      this.draw();
    }

    frame(panel, number) {
      const box = document.createElement("div");
      box.className = "step";
      const title = document.createElement("h3");
      title.textContent = `${panel.step.label}: ${ms(panel.step.iteration_us)}`;
      const legend = document.createElement("ul");
      legend.className = "legend";
      for (const [name, text] of LIVES) {
        const item = document.createElement("li"), key = document.createElement("span");
        key.className = `key life-${name}`;
        item.append(key, text);
        legend.append(item);
      }
      const frame = document.createElement("div");
      frame.className = "frame";
      panel.svg = made(frame, "svg", {
        tabindex: 0, role: "application",
        "aria-label": `Timeline of ${panel.step.label}: up and down choose a bucket, left and right move, plus and minus zoom, 0 shows all`,
      });
      this.listen(panel);
      box.append(title, ...(number === 0 ? [legend] : []), ...this.causes(panel), frame);
      return box;
    }

    // What the colours of the longest path say, the most first; none where it is not known.
    causes(panel) {
      const sums = new Map();
      for (const [cause, , low, high] of panel.step.path) sums.set(cause, (sums.get(cause) || 0) + high - low);
      if (!sums.size) return [];
      const legend = document.createElement("ul");
      legend.className = "legend";
      legend.append(Object.assign(document.createElement("li"), {textContent: "waits for"}));
      for (const [cause, us] of [...sums].sort((one, other) => other[1] - one[1])) {
        const item = document.createElement("li"), key = document.createElement("span");
        key.className = `key path-${CAUSES[cause] || cause}`;
        item.append(key, `${cause} ${ms(us)}`);
        legend.append(item);
      }
      return [legend];
    }

    listen(panel) {
      const svg = panel.svg;
      svg.addEventListener("keydown", (event) => this.key(event, panel));
      svg.addEventListener("wheel", (event) => this.wheel(event, panel), {passive: false});
      svg.addEventListener("pointerdown", (event) => {
        this.pointers.set(event.pointerId, event.clientX);
        svg.setPointerCapture(event.pointerId);
        svg.classList.add("moving");
        this.point(event, panel);
      });
      svg.addEventListener("pointermove", (event) => {
        if (this.pointers.has(event.pointerId)) this.drag(event, panel);
        else this.point(event, panel);
      });
      for (const name of ["pointerup", "pointercancel"])
        svg.addEventListener(name, (event) => {
          this.pointers.delete(event.pointerId);
          svg.classList.remove("moving");
        });
      svg.addEventListener("dblclick", (event) => this.zoom(0.5, this.time(event.clientX, panel)));
    }

    // Where buckets begin, below the parts and, where it is known, the longest path.
    top(panel) { return AXIS + LANE + TICKS + (panel.step.path.length ? PATH : 0); }

    // Time under a place on the screen, and places on the drawing of a time.
    time(clientX, panel) {
      const box = panel.svg.getBoundingClientRect();
      const share = (clientX - box.left - GUTTER) / (box.width - GUTTER);
      return this.view[0] + share * (this.view[1] - this.view[0]);
    }

    x(us) { return GUTTER + (us - this.view[0]) / (this.view[1] - this.view[0]) * (this.width - GUTTER); }

    show(low, high) {
      const whole = this.end - this.start, span = Math.min(whole, Math.max(LEAST_US, high - low));
      const from = Math.min(Math.max(this.start, low), this.end - span);
      this.view = [from, from + span];
      if (!this.waiting) {
        this.waiting = true;
        requestAnimationFrame(() => { this.waiting = false; this.draw(); });
      }
    }

    zoom(factor, around = (this.view[0] + this.view[1]) / 2) {
      this.show(around - (around - this.view[0]) * factor, around + (this.view[1] - around) * factor);
    }

    move(share) {
      const by = share * (this.view[1] - this.view[0]);
      this.show(this.view[0] + by, this.view[1] + by);
    }

    act(name) {
      if (name === "in") this.zoom(0.5);
      if (name === "out") this.zoom(2);
      if (name === "left") this.move(-0.25);
      if (name === "right") this.move(0.25);
      if (name === "all") this.show(this.start, this.end);
    }

    key(event, panel) {
      const acts = {"+": "in", "=": "in", "-": "out", "0": "all", "Home": "all", "ArrowLeft": "left", "ArrowRight": "right"};
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key in acts) this.act(acts[event.key]);
      else if (event.key === "ArrowDown" || event.key === "ArrowUp") this.next(panel, event.key === "ArrowDown" ? 1 : -1);
      else return;
      event.preventDefault();
    }

    next(panel, by) {
      if (!panel.lives.length) return;
      const now = this.picked && this.picked.panel === panel ? this.picked.number + by : by > 0 ? 0 : panel.lives.length - 1;
      this.pick(panel, Math.min(Math.max(now, 0), panel.lives.length - 1));
      const top = this.top(panel) + this.picked.number * this.row, frame = panel.svg.parentElement;
      if (top < frame.scrollTop || top + this.row > frame.scrollTop + frame.clientHeight) frame.scrollTop = top - frame.clientHeight / 2;
    }

    wheel(event, panel) {
      if (event.ctrlKey || event.metaKey) this.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.01), this.time(event.clientX, panel));
      else if (event.deltaX) this.move(event.deltaX / this.width);
      else return;
      event.preventDefault();
    }

    drag(event, panel) {
      const others = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, x]) => x);
      const before = this.pointers.get(event.pointerId);
      this.pointers.set(event.pointerId, event.clientX);
      if (others.length) {
        const was = Math.abs(before - others[0]), now = Math.abs(event.clientX - others[0]);
        if (was > 10 && now > 10) this.zoom(was / now, this.time((event.clientX + others[0]) / 2, panel));
      } else this.move((before - event.clientX) / (this.width - GUTTER));
    }

    point(event, panel) {
      const y = event.clientY - panel.svg.getBoundingClientRect().top - AXIS;
      const number = Math.floor((y + AXIS - this.top(panel)) / this.row);
      if (y >= 0 && y < LANE) this.phase(panel, this.time(event.clientX, panel));
      else if (y >= LANE + TICKS && y < LANE + TICKS + PATH && number < 0) this.waits(panel, this.time(event.clientX, panel));
      else if (number >= 0 && number < panel.lives.length) this.pick(panel, number);
    }

    phase(panel, us) {
      const found = panel.step.phases.find(([, low, high]) => low <= us && us < high);
      if (found) this.said.textContent = `${found[0]} (${panel.step.label}): ${ms(found[2] - found[1])}, from ${ms(found[1])} to ${ms(found[2])}.`;
    }

    waits(panel, us) {
      const found = panel.step.path.find(([, , low, high]) => low <= us && us < high);
      if (found) this.said.textContent = `The step waits for ${found[0]} (${found[1]}): ${ms(found[3] - found[2])}, from ${ms(found[2])} to ${ms(found[3])}.`;
    }

    pick(panel, number) {
      if (this.picked && this.picked.panel === panel && this.picked.number === number) return;
      this.picked = {panel, number};
      this.said.textContent = told(panel.step, panel.lives[number]);
      for (const each of this.panels) this.mark(each);
    }

    mark(panel) {
      for (const old of panel.svg.querySelectorAll(".chosen")) old.remove();
      if (!this.picked || this.picked.panel !== panel) return;
      const y = this.top(panel) + this.picked.number * this.row;
      made(panel.svg, "rect", {class: "chosen", x: 0, y, width: this.width, height: this.row});
    }

    draw() {
      this.width = Math.max(200, this.steps.clientWidth);
      for (const panel of this.panels) this.drawOne(panel);
    }

    drawOne(panel) {
      const {svg, step, lives} = panel, top = this.top(panel), height = top + lives.length * this.row + 4;
      svg.replaceChildren();
      svg.setAttribute("height", height);
      svg.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
      this.axis(svg, height);
      for (const [name, low, high] of step.phases) this.lane(svg, name, low, high);
      for (const us of step.gradients_us)
        if (us >= this.view[0] && us <= this.view[1])
          made(svg, "line", {class: "gradient", x1: this.x(us), x2: this.x(us), y1: AXIS + LANE + 1, y2: AXIS + LANE + TICKS - 1});
      for (const [cause, , low, high] of step.path) this.bar(svg, low, high, AXIS + LANE + TICKS, PATH - 6, `path-${CAUSES[cause] || cause}`);
      lives.forEach((life, number) => this.life(svg, life, top + number * this.row));
      if (this.view[1] >= step.iteration_us)
        made(svg, "line", {class: "end", x1: this.x(step.iteration_us) - 1, x2: this.x(step.iteration_us) - 1, y1: AXIS, y2: height});
      this.mark(panel);
    }

    axis(svg, height) {
      const span = this.view[1] - this.view[0], most = Math.max(2, Math.floor((this.width - GUTTER) / 90));
      let step = 10 ** Math.floor(Math.log10(span / most));
      while (span / step > most) step *= span / (step * 2) <= most ? 2 : span / (step * 5) <= most ? 5 : 10;
      for (let us = Math.ceil(this.view[0] / step) * step; us <= this.view[1]; us += step) {
        const x = this.x(us);
        made(svg, "line", {class: "grid", x1: x, x2: x, y1: AXIS - 4, y2: height});
        const anchor = x > this.width - 40 ? "end" : x < GUTTER + 30 ? "start" : "middle";
        made(svg, "text", {class: "tick", x, y: 12, "text-anchor": anchor}, `${Number((us / 1e3).toPrecision(6))} ms`);
      }
    }

    // A rectangle of the time that is in view; null where none of it is.
    bar(svg, low, high, y, height, name) {
      const from = Math.max(low, this.view[0]), to = Math.min(high, this.view[1]);
      if (to <= from) return null;
      const x = this.x(from), width = Math.max(0.5, this.x(to) - x);
      made(svg, "rect", {class: name, x, y, width, height});
      return {x, width};
    }

    lane(svg, name, low, high) {
      const drawn = this.bar(svg, low, high, AXIS, LANE - 2, `part-${PARTS[name] || name}`);
      if (drawn && drawn.width > 7 * name.length)
        made(svg, "text", {class: "inside", x: drawn.x + drawn.width / 2, y: AXIS + 14, "text-anchor": "middle"}, name);
    }

    life(svg, life, y) {
      if (this.row >= 10) made(svg, "text", {class: "tick", x: GUTTER - 6, y: y + this.row - 3, "text-anchor": "end"}, life.bucket);
      for (const [name] of LIVES) {
        const thin = name === "done" ? this.row * 0.4 : 1;
        this.bar(svg, ...life.spans[name], y + thin, this.row - 2 * thin, `life-${name}`);
      }
    }
  }

  for (const root of document.querySelectorAll(".timeline")) new Timeline(root);
})();
