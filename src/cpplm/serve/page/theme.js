// The chosen look, before anything is drawn; a module would run too late.
"use strict";
try {
  const theme = localStorage.getItem("cpplm.theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch {
  // No storage: the system's look.
}
