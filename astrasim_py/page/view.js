// Canvases: resolution, and colours of the theme. Colours of data are those of the figures.

/** What a rank does, and collectives by type, with their messages → colour. */
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
    for (const name of ["text", "soft", "line", "panel", "idle", "vertex", "cursor", "path", "back", "dark"]) {
      known[name] = style.getPropertyValue(`--${name}`).trim();
    }
  }
  return known;
}

export function themeChanged() {
  known = {};
}

export function isDark() {
  return getComputedStyle(document.documentElement).getPropertyValue("--dark").trim() === "1";
}

/** Colour of a share from 0 to 1: the fuller, the further from the background, so that brightness alone tells it, too. */
export function heat(share) {
  const s = Math.min(Math.max(share, 0), 1);
  if (colours().dark === "1") return `hsl(${15 + 40 * s} ${60 + 35 * s}% ${28 + 40 * s}%)`;
  return `hsl(${48 - 48 * s} 90% ${62 - 27 * s}%)`;
}
