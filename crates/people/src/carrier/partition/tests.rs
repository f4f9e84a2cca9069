//! Tests of the partition's state machine.

mod admission;
mod changed_rules;
mod delivery;
mod exhausted;
mod inbox_query;
mod kicks;
mod notices;
mod owner_change;
mod refold;
mod repeats;
mod seats_seen;
mod store;
mod supervision;
mod system_holds;
mod time_and_bounds;
mod world;

use world::{GATEWAY, World, epoch, message, uid, with_notice};
