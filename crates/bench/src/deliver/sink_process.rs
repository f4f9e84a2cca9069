//! The sink as a process of this binary. It is stopped when it is dropped.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use super::sink::SinkFigures;
use crate::BenchError;

pub struct SinkProcess {
    process: Child,
    pub address: SocketAddr,
}

impl SinkProcess {
    pub fn start() -> Result<Self, BenchError> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut process = command.args(["bench", "sink"]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        if let Some(stdout) = process.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        match line.trim().parse() {
            Ok(address) => Ok(Self { process, address }),
            Err(_) => {
                let _ = process.kill();
                let _ = process.wait();
                Err(BenchError::new("the sink did not start; its error is above"))
            }
        }
    }

    pub fn figures(&self, path: &str) -> Result<SinkFigures, BenchError> {
        let mut stream = TcpStream::connect(self.address)?;
        let request = format!("GET /figures?path={path} HTTP/1.1\r\nhost: sink\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        serde_json::from_str(body).map_err(|error| BenchError::new(format!("cannot parse the sink's figures: {error}")))
    }
}

impl Drop for SinkProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
