//! The crowd as a process of this same binary, ended when it is dropped.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::{Deserialize, Serialize};

use super::crowd::{Order, Speaks, Told};
use crate::cli::Failure;

/// How devices say who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Identity {
    Token,
    Uid,
}

pub struct CrowdProcess {
    process: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    identity: Identity,
}

impl CrowdProcess {
    pub fn start(identity: Identity) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut process = command.args(["bench", "crowd"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        match (process.stdin.take(), process.stdout.take()) {
            (Some(stdin), Some(stdout)) => Ok(Self { process, stdin, stdout: BufReader::new(stdout), identity }),
            _ => Err(Failure::new("the crowd has no way to be talked to")),
        }
    }

    pub fn open(&mut self, address: SocketAddr, first: u32, count: u32, at_once: usize) -> Result<Told, Failure> {
        let (identity, speaks) = (self.identity, Speaks::default());
        self.order(&Order::Open { address, first, count, at_once, identity, speaks, mute: false })
    }

    /// One device that acknowledges nothing.
    pub fn open_mute(&mut self, address: SocketAddr, user: u32) -> Result<Told, Failure> {
        let (identity, speaks) = (self.identity, Speaks::default());
        self.order(&Order::Open { address, first: user, count: 1, at_once: 1, identity, speaks, mute: true })
    }

    pub fn drop_all(&mut self) -> Result<Told, Failure> {
        self.order(&Order::Drop)
    }

    pub fn figures(&mut self) -> Result<Told, Failure> {
        self.order(&Order::Figures)
    }

    pub fn reset(&mut self) -> Result<Told, Failure> {
        self.order(&Order::Reset)
    }

    fn order(&mut self, order: &Order) -> Result<Told, Failure> {
        let not_understood = |error: serde_json::Error| Failure::new(format!("the crowd is not understood: {error}"));
        let mut line = serde_json::to_vec(order).map_err(not_understood)?;
        line.push(b'\n');
        self.stdin.write_all(&line)?;
        self.stdin.flush()?;
        let mut told = String::new();
        self.stdout.read_line(&mut told)?;
        serde_json::from_str(&told).map_err(not_understood)
    }
}

impl Drop for CrowdProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
