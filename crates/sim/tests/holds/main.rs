//! Holds: a scene for each rule of the protocol and for each bug that was found, and a fixed set of seeds.

mod clock;
mod regressions;
mod rules;
mod scene;
mod seeds;
