//! The crowd as a process of this binary. It is stopped when it is dropped.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::{Deserialize, Serialize};

use super::crowd::{CrowdOrder, CrowdProtocol, CrowdReply};
use crate::BenchError;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CrowdIdentity {
    Token,
    Uid,
}

pub struct CrowdProcess {
    process: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    identity: CrowdIdentity,
}

impl CrowdProcess {
    pub fn start(identity: CrowdIdentity) -> Result<Self, BenchError> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut process = command.args(["bench", "crowd"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        match (process.stdin.take(), process.stdout.take()) {
            (Some(stdin), Some(stdout)) => Ok(Self { process, stdin, stdout: BufReader::new(stdout), identity }),
            _ => Err(BenchError::new("the crowd has no standard input or output")),
        }
    }

    pub fn open(
        &mut self,
        address: SocketAddr,
        first: u32,
        count: u32,
        at_once: usize,
    ) -> Result<CrowdReply, BenchError> {
        let (identity, speaks) = (self.identity, CrowdProtocol::default());
        self.order(&CrowdOrder::Open { address, first, count, at_once, identity, speaks, mute: false })
    }

    /// One device that acknowledges no messages.
    pub fn open_mute(&mut self, address: SocketAddr, user: u32) -> Result<CrowdReply, BenchError> {
        let (identity, speaks) = (self.identity, CrowdProtocol::default());
        self.order(&CrowdOrder::Open { address, first: user, count: 1, at_once: 1, identity, speaks, mute: true })
    }

    pub fn drop_all(&mut self) -> Result<CrowdReply, BenchError> {
        self.order(&CrowdOrder::Drop)
    }

    pub fn figures(&mut self) -> Result<CrowdReply, BenchError> {
        self.order(&CrowdOrder::Figures)
    }

    pub fn reset(&mut self) -> Result<CrowdReply, BenchError> {
        self.order(&CrowdOrder::Reset)
    }

    fn order(&mut self, order: &CrowdOrder) -> Result<CrowdReply, BenchError> {
        let not_understood =
            |error: serde_json::Error| BenchError::new(format!("cannot parse the crowd's answer: {error}"));
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
