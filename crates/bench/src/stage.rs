//! The base of every benchmark: a folder on the device, a server, loads, and the report.

use std::io::Write as _;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use indicatif::ProgressBar;
use whimbrel_client::{Client, ClientError, TopicSettings};

use super::child_server::ChildServer;
use super::device::{Probe, StorageDevice};
use super::load::{self, LoadOutcome, LoadPace, RequestLoad, Requests};
use super::report::BenchReport;
use super::wire;
use crate::{BenchError, StageArgs};

/// Duration of each measurement of a quick run, in seconds.
const QUICK_SECONDS: f64 = 0.3;

pub struct BenchStage {
    pub address: SocketAddr,
    pub runtime: tokio::runtime::Runtime,
    /// The fresh server; `None` if a running one is measured.
    pub server: Option<ChildServer>,
    pub report: BenchReport,
    pub measure_for: Duration,
    pub is_quick: bool,
    key: Option<String>,
    headers: Vec<String>,
    threads: usize,
    warmup: Duration,
    probe_for: Duration,
    progress: ProgressBar,
    device: StorageDevice,
    json: bool,
    settings: Vec<String>,
    /// The last field: it is dropped after the server has stopped.
    folder: tempfile::TempDir,
}

impl BenchStage {
    pub fn set(args: &StageArgs) -> Result<Self, BenchError> {
        let folder = tempfile::Builder::new().prefix("whimbrel-bench-").tempdir_in(&args.data).map_err(|error| {
            BenchError::new(format!(
                "cannot create a folder in {}: {error}: set a folder on the device to measure with --data",
                args.data.display()
            ))
        })?;
        let device = StorageDevice::open(folder.path())?;
        let (server, address) = match &args.server {
            Some(url) => (None, address_of(url)?),
            None => {
                let server = ChildServer::start(folder.path(), &args.set)?;
                let address = server.address;
                (Some(server), address)
            }
        };
        let measure_for = Duration::from_secs_f64(if args.quick { QUICK_SECONDS } else { args.seconds });
        Ok(Self {
            address,
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
            server,
            report: BenchReport::default(),
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

    /// Stops the fresh server in order and restarts it on its data.
    pub fn restart(&mut self) -> Result<(), BenchError> {
        if self.server.take().is_some() {
            self.adopt(ChildServer::start(self.folder.path(), &self.settings)?);
        }
        Ok(())
    }

    /// Stops the fresh server and starts another on an empty folder.
    pub fn start_anew(&mut self) -> Result<(), BenchError> {
        if self.server.take().is_some() {
            ChildServer::remove_data(self.folder.path())?;
            self.adopt(ChildServer::start(self.folder.path(), &self.settings)?);
        }
        Ok(())
    }

    fn adopt(&mut self, server: ChildServer) {
        self.address = server.address;
        self.server = Some(server);
    }

    /// A client for one exchange. A longer-lived one would keep connections that no runtime drives between the rounds and in other threads,
    /// and that the server has closed.
    pub fn client(&self) -> Result<Client, BenchError> {
        let client = Client::new(&format!("http://{}", self.address))?;
        Ok(match &self.key {
            Some(key) => client.with_api_key(key)?,
            None => client,
        })
    }

    /// Makes requests to the server.
    pub fn call<T>(&self, call: impl AsyncFnOnce(&Client) -> Result<T, ClientError>) -> Result<T, BenchError> {
        let client = self.client()?;
        Ok(self.runtime.block_on(call(&client))?)
    }

    /// Creates topics, each with its number of partitions; `None`: the server's default.
    pub fn make_topics(&self, topics: &[(&str, Option<u32>)]) -> Result<(), BenchError> {
        self.call(async |client| {
            for (topic, partitions) in topics {
                client.put_topic(topic, &TopicSettings { partitions: *partitions, ..TopicSettings::default() }).await?;
            }
            Ok(())
        })
    }

    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    pub fn say(&self, what: impl Into<String>) {
        self.progress.set_message(what.into());
        self.progress.tick();
    }

    pub fn show(&self) -> Result<ExitCode, BenchError> {
        self.progress.finish_and_clear();
        let report = if self.json { self.report.as_json().to_string() } else { self.report.as_table() };
        writeln!(std::io::stdout(), "{report}")?;
        Ok(ExitCode::SUCCESS)
    }

    /// A load that starts when it is run, with the threads and warm-up of this stage.
    pub fn load<'a>(
        &self,
        requests: Requests<'a>,
        connections: usize,
        pace: LoadPace,
        duration: Duration,
    ) -> RequestLoad<'a> {
        // One thread keeps a steady rate: several would each keep a part of it, in step.
        let threads = if pace == LoadPace::Saturate { self.threads } else { 1 };
        RequestLoad {
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
        pace: LoadPace,
        duration: Duration,
    ) -> Result<LoadOutcome, BenchError> {
        self.say(format!("{connections} connections"));
        run(self.load(requests, connections, pace, duration))
    }

    pub fn probe(&mut self) -> Result<Probe, BenchError> {
        self.say("the device");
        let probe = self.device.probe(self.probe_for)?;
        self.report.device(probe);
        Ok(probe)
    }

    /// Renders a request; `content_type` is set if it has a body.
    pub fn request(&self, method: &str, path: &str, content_type: &str, body: &[u8]) -> Vec<u8> {
        let mut headers = self.headers.clone();
        if !content_type.is_empty() {
            headers.push(format!("content-type: {content_type}"));
        }
        wire::request(method, path, &self.address.to_string(), &headers, body)
    }
}

pub fn run(load: RequestLoad<'_>) -> Result<LoadOutcome, BenchError> {
    load::run(load).map_err(|error| BenchError::new(error.to_string()))
}

fn address_of(url: &str) -> Result<SocketAddr, BenchError> {
    let bad = || BenchError::new(format!("`{url}` is not a server address: expected http://host:port"));
    let host = url.strip_prefix("http://").ok_or_else(bad)?.trim_end_matches('/');
    host.to_socket_addrs().ok().and_then(|mut addresses| addresses.next()).ok_or_else(bad)
}
