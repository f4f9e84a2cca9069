//! The horn against local servers that speak the providers' protocols and check what they are sent as the providers do.

mod apns;
mod bench;
mod fcm;
mod handing;
mod misbehaving;
mod notices;
mod plain_http;
mod proofs;
mod provider;
mod registry;
mod webpush;
