"use strict";

// Shows the OpenAPI document, and sends nothing anywhere else: `validatorUrl` would name an outside service.
window.SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#viewer",
  deepLinking: true,
  validatorUrl: null,
  defaultModelsExpandDepth: 0,
  presets: [window.SwaggerUIBundle.presets.apis],
});
