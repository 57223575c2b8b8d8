// Canvases: resolution, and colours of the theme. Colours of data are those of Okabe and Ito, safe for colour-blind eyes.

export const KIND_COLOURS = {
  compute: "#e69f00",
  collective: "#0072b2",
  send: "#56b4e9",
  recv: "#009e73",
  memory: "#cc79a7",
  metadata: "#999999",
};
export const MESSAGE_COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/** The 2-D context of a canvas of `height` CSS pixels, cleared, and its width in CSS pixels. */
export function prepared(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth || 600;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

let known = {};
/** The colours of the theme, read again after `themeChanged`. */
export function colours() {
  if (!known.text) {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["text", "soft", "line", "panel", "idle", "vertex", "cursor", "path", "back"]) {
      known[name] = style.getPropertyValue(`--${name}`).trim();
    }
  }
  return known;
}

export function themeChanged() {
  known = {};
}

/** Colour of a share from 0 to 1: yellow to dark red (light theme) is read by brightness alone, too. */
export function heat(share) {
  const s = Math.min(Math.max(share, 0), 1);
  return `hsl(${48 - 48 * s} 90% ${62 - 27 * s}%)`;
}
