//! Tests of the horn with local servers that implement the providers' protocols and check requests as the providers do.

mod apns;
mod bench;
mod fcm;
mod misbehaving;
mod notices;
mod plain_http;
mod proofs;
mod provider;
mod remote_horns;
mod webpush;
