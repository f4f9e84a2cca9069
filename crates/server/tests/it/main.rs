//! The real binary, started on free ports with folders of their own: what a user does, and what must survive.

mod commands;
mod crash;
mod holds;
mod hold_crash;
mod hold_heard;
mod hold_model;
mod hold_settling;
mod hold_work;
mod random;
mod holds;
mod readme;
mod server;
mod services;
mod serving;
mod starting;
