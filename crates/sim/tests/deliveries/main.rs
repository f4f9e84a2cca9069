//! Deliveries: a scene for each rule, a fixed set of seeds, and long times that are simulated quickly.

mod long;
mod rules;
mod scene;
mod seeds;
