//! Tests of the worker with correct endpoints, and with faulty ones.

mod behaving;
mod endpoint;
mod misbehaving;
mod pool;
mod tls;
