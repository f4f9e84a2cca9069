//! Rules for endpoints: which URLs are valid, which addresses are allowed, which secrets can sign.
//!
//! `receive` checks requests with them. The worker and the horn check each call again before they make it.

mod address_guard;
mod signing_secret;
mod url;

pub use address_guard::{AddressGuard, BadRule, Forbidden};
pub use signing_secret::{BadSecret, check_secret, signing_key};
pub use url::{BadUrl, EndpointUrl, URL_BYTES_MAX, check_url, host_of};
