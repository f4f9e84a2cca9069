//! What a partition does for its users.

mod admitting;
mod asking;
mod changed_rules;
mod delivering;
mod exhausted;
mod kicks;
mod own_holds;
mod owner_change;
mod refold;
mod repeats;
mod seats_seen;
mod store;
mod supervision;
mod time_and_bounds;
mod waking;
mod world;

use world::{EPOCH, GATEWAY, World, epoch, message, uid};
