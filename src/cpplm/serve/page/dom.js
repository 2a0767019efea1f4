// The one helper that several parts need.

/** A new element with these properties and children; texts become text, never HTML. */
export function made(name, properties, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}
