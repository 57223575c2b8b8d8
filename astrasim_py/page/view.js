// Canvases: resolution, size of type, and colours of the theme. Colours of data are those of the figures.

/** What a rank does, and collectives by type, with their messages → colour; `use`: links by their use. */
export const PALETTE = JSON.parse(document.body.dataset.palette);

export function colourOf(kind) {
  return PALETTE[kind] ?? PALETTE.collective;
}

/** Red, green and blue of a colour such as #0072b2. */
export function channels(colour) {
  return [1, 3, 5].map((place) => parseInt(colour.slice(place, place + 2), 16));
}

/** Black or white, whichever is read better on a colour. */
export function textOn(colour) {
  const [red, green, blue] = channels(colour);
  return 0.299 * red + 0.587 * green + 0.114 * blue > 130 ? "#000000" : "#ffffff";
}

/** How much larger everything in a canvas is than on a desk: for a projector. */
export function zoom() {
  return document.body.classList.contains("present") ? 1.6 : 1;
}

/** A font of the page for a canvas; `size` in CSS pixels on a desk. */
export function font(size) {
  return `${size * zoom()}px system-ui, sans-serif`;
}

/** The 2-D context of a canvas, cleared, and its size in CSS pixels. `height`: by default that of its pane. */
export function prepared(canvas, height = canvas.parentElement.clientHeight) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.parentElement.clientWidth || 600;
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

let theme = {};
/** The colours of the theme, read again after `themeChanged`. */
export function colours() {
  if (!theme.text) {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["text", "soft", "line", "panel", "idle", "vertex", "cursor", "path", "back"]) {
      theme[name] = style.getPropertyValue(`--${name}`).trim();
    }
  }
  return theme;
}

export function themeChanged() {
  theme = {};
}

export function isDark() {
  return document.documentElement.dataset.theme === "dark";
}

/** Links are told apart by use up to these shares, percent; the colour and the width of each. */
export const STEPS = [5, 10, 20, 40, 100];
const WIDTHS = [1.6, 2.4, 3.2, 4.2, 5.6];

/** The step of a share from 0 to 1. */
export function stepOf(share) {
  return STEPS.findIndex((most) => share * 100 <= most + 1e-9);
}

/** Colour and width of a step: the fuller, the further from the background, so that brightness alone tells it, too. */
export function lookOf(step) {
  return { colour: PALETTE[isDark() ? "use_dark" : "use"][step], width: WIDTHS[step] };
}
