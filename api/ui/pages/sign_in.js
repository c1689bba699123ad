// Asks for the token that the service wants.

import { h, heading } from "../dom.js";

export function signIn(wrong, given) {
  const field = h("input", { id: "token", type: "password", autocomplete: "current-password", required: true, "aria-describedby": "token-help" });
  const submit = (event) => { event.preventDefault(); given(field.value.trim()); };
  return [
    heading("Sign in"),
    wrong && h("p", { role: "alert" }, "The service does not know this token."),
    h("form", { class: "sign-in", onsubmit: submit },
      h("label", { for: "token" }, "Token of your tenant"),
      field,
      h("p", { id: "token-help" }, "It stays in this tab until it is closed. Where the operator gave none, it is in the file `token` of the state directory, and `prorl-mq up` printed a link with it."),
      h("button", { type: "submit" }, "Sign in")),
  ].filter(Boolean);
}
