//! What every bench stands on: a folder on the device, a server, ways to put load on it, and the report.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use indicatif::ProgressBar;
use whimbrel_client::Client;

use super::child::Server;
use super::device::{Device, Probe};
use super::load::{self, Load, Outcome, Pace, Requests};
use super::report::Report;
use super::wire;
use crate::cli::{Failure, StageArgs, print_json, print_line};

/// How long each measurement of a quick run takes.
const QUICK_SECONDS: f64 = 0.3;

pub struct Stage {
    pub address: SocketAddr,
    pub runtime: tokio::runtime::Runtime,
    /// The fresh server; `None` where a running one is measured.
    pub server: Option<Server>,
    pub report: Report,
    pub measure_for: Duration,
    pub is_quick: bool,
    key: Option<String>,
    /// Lines that every request has.
    headers: Vec<String>,
    threads: usize,
    warmup: Duration,
    probe_for: Duration,
    progress: ProgressBar,
    device: Device,
    json: bool,
    settings: Vec<String>,
    /// Last, so that it goes when the server has ended.
    folder: tempfile::TempDir,
}

impl Stage {
    pub fn set(args: &StageArgs) -> Result<Self, Failure> {
        let folder = tempfile::Builder::new().prefix("whimbrel-bench-").tempdir_in(&args.data).map_err(|error| {
            Failure::new(format!("no folder can be made in {}: {error}", args.data.display()))
                .with_hint("name a folder on the device to measure with --data")
        })?;
        let device = Device::open(folder.path())?;
        let (server, address) = match &args.server {
            Some(url) => (None, address_of(url)?),
            None => {
                let server = Server::start(folder.path(), &args.set)?;
                let address = server.address;
                (Some(server), address)
            }
        };
        let measure_for = Duration::from_secs_f64(if args.quick { QUICK_SECONDS } else { args.seconds });
        Ok(Self {
            address,
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
            server,
            report: Report::default(),
            measure_for,
            is_quick: args.quick,
            key: args.key.clone(),
            headers: args.key.iter().map(|key| format!("authorization: Bearer {key}")).collect(),
            threads: args.threads.into(),
            warmup: (measure_for / 10).min(Duration::from_millis(500)),
            probe_for: (measure_for / 4).min(Duration::from_secs(1)),
            progress: ProgressBar::new_spinner(),
            device,
            json: args.json,
            settings: args.set.clone(),
            folder,
        })
    }

    /// Ends the fresh server in order and starts it again on what it left.
    pub fn restart(&mut self) -> Result<(), Failure> {
        if self.server.take().is_some() {
            self.adopt(Server::start(self.folder.path(), &self.settings)?);
        }
        Ok(())
    }

    /// Ends the fresh server and starts another on an empty folder.
    pub fn start_anew(&mut self) -> Result<(), Failure> {
        if self.server.take().is_some() {
            Server::remove_data(self.folder.path())?;
            self.adopt(Server::start(self.folder.path(), &self.settings)?);
        }
        Ok(())
    }

    fn adopt(&mut self, server: Server) {
        self.address = server.address;
        self.server = Some(server);
    }

    /// A client for one conversation. One that lasted would keep connections that nothing drives between the rounds and in other
    /// threads, and that the server has closed meanwhile.
    pub fn client(&self) -> Result<Client, Failure> {
        let client = Client::new(&format!("http://{}", self.address))?;
        Ok(match &self.key {
            Some(key) => client.with_api_key(key)?,
            None => client,
        })
    }

    /// Where the fresh server and its data are.
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Says what is under way.
    pub fn say(&self, what: impl Into<String>) {
        self.progress.set_message(what.into());
        self.progress.tick();
    }

    /// Prints what was found.
    pub fn show(&self) -> Result<ExitCode, Failure> {
        self.progress.finish_and_clear();
        if self.json {
            print_json(&self.report.as_json())?;
        } else {
            print_line(&self.report.as_table())?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// A load that begins when it is run; threads and warm-up are this stage's.
    pub fn load<'a>(&self, requests: Requests<'a>, connections: usize, pace: Pace, duration: Duration) -> Load<'a> {
        // A steady rate is kept by one thread: several would each keep a part of it, in step.
        let threads = if pace == Pace::Saturate { self.threads } else { 1 };
        Load {
            address: self.address,
            requests,
            connections,
            threads,
            pace,
            warmup: self.warmup,
            duration,
            stop: None::<&AtomicBool>,
        }
    }

    pub fn run(
        &self,
        requests: Requests<'_>,
        connections: usize,
        pace: Pace,
        duration: Duration,
    ) -> Result<Outcome, Failure> {
        self.say(format!("{connections} connections"));
        run(self.load(requests, connections, pace, duration))
    }

    pub fn probe(&mut self) -> Result<Probe, Failure> {
        self.say("the device");
        let probe = self.device.probe(self.probe_for)?;
        self.report.device(probe);
        Ok(probe)
    }

    /// Renders a request; `content_type` where it has a body.
    pub fn request(&self, method: &str, path: &str, content_type: &str, body: &[u8]) -> Vec<u8> {
        let mut headers = self.headers.clone();
        if !content_type.is_empty() {
            headers.push(format!("content-type: {content_type}"));
        }
        wire::request(method, path, &self.address.to_string(), &headers, body)
    }
}

/// Runs a load to its end.
pub fn run(load: Load<'_>) -> Result<Outcome, Failure> {
    load::run(load).map_err(|error| Failure::new(error.to_string()))
}

fn address_of(url: &str) -> Result<SocketAddr, Failure> {
    let bad = || Failure::new(format!("`{url}` is not a server's address")).with_hint("write http://host:port");
    let host = url.strip_prefix("http://").ok_or_else(bad)?.trim_end_matches('/');
    host.to_socket_addrs().ok().and_then(|mut addresses| addresses.next()).ok_or_else(bad)
}
