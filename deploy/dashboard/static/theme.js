// Applies the chosen theme before the page is painted; without a choice, the system's is used.
"use strict";
try {
  const theme = localStorage.getItem("theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch { /* storage is blocked: the system's theme stays */ }
