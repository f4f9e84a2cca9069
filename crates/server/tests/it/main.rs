//! The real binary, started on free ports with folders of their own: what a user does, and what must survive.

mod commands;
mod crash;
mod deliver;
mod deliver_changing;
mod deliver_crash;
mod deliver_doors;
mod deliver_moving;
mod deliver_nodes;
mod deliver_pull;
mod deliver_push;
mod deliver_verified;
mod hold_crash;
mod hold_heard;
mod hold_model;
mod hold_nodes;
mod hold_outage;
mod hold_settling;
mod hold_work;
mod holds;
mod random;
mod readme;
mod receiver;
mod server;
mod services;
mod serving;
mod starting;
