//! `GET /people`: the page of the guide for users. Two browsers can exchange pushes without further software.
//!
//! It is the file `docs/guides/people.html`. It contains nothing about this server but its address, and has no more rights than any page
//! from it.

use axum::response::Response;

use super::html_response;

const PAGE: &str = include_str!("../../../../docs/guides/people.html");
/// Allows its own script and style, and connections to this server only.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
                      frame-ancestors 'none'";

/// The page of the users guide
#[utoipa::path(
    get, path = "/people", tag = "operating", operation_id = "people_page",
    responses((status = 200, description = "A page that connects as a device and pushes to other users", body = String, content_type = "text/html")),
)]
pub(crate) async fn people_page() -> Response {
    html_response(PAGE, POLICY)
}
