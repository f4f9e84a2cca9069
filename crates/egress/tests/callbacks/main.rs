//! The worker against endpoints that behave, and against those that misbehave in every way there is.

mod behaving;
mod endpoint;
mod misbehaving;
mod pool;
mod tls;
