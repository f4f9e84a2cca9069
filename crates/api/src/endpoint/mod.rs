//! Rules for endpoints: which URLs can be called, which addresses may be reached, which secrets can sign.
//!
//! `receive` checks a request with them, and the worker and the horn check each call again before it is made.

mod address_guard;
mod signing_secret;
mod url;

pub use address_guard::{AddressGuard, BadRule, Forbidden};
pub use signing_secret::{BadSecret, check_secret, signing_key};
pub use url::{BadUrl, EndpointUrl, URL_BYTES_MAX, check_url, host_of};
