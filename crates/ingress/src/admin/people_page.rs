//! `GET /people`: the guide's page, served from here, so that two browsers talk to each other with nothing else installed.
//!
//! It is the very file of the guide. It knows nothing of this server but its address, and can do what any page of it could.

use axum::response::Response;

use super::html_response;

const PAGE: &str = include_str!("../../../../docs/guides/people.html");
/// Its own script and style, and nowhere to speak to but here.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
                      frame-ancestors 'none'";

/// Two browsers, for people
#[utoipa::path(
    get, path = "/people", tag = "operating", operation_id = "people_page",
    responses((status = 200, description = "A page that is a device and pushes to others", body = String, content_type = "text/html")),
)]
pub(crate) async fn people_page() -> Response {
    html_response(PAGE, POLICY)
}
