//! What every command that talks to a server takes, and the runtime it talks on.

use std::future::Future;
use std::process::ExitCode;

use whimbrel_client::Client;

use super::Failure;

#[derive(Debug, clap::Args)]
pub struct ConnectArgs {
    /// The server to talk to
    #[arg(long, value_name = "URL", env = "WHIMBREL_SERVER", default_value = "http://127.0.0.1:7600")]
    server: String,
    /// The API key to show it
    #[arg(long, value_name = "SECRET", env = "WHIMBREL_KEY", hide_env_values = true)]
    key: Option<String>,
    /// Print JSON for programs
    #[arg(long)]
    pub json: bool,
}

impl ConnectArgs {
    pub fn client(&self) -> Result<Client, Failure> {
        let client = Client::new(&self.server)?;
        match self.key.as_deref().filter(|key| !key.is_empty()) {
            Some(key) => Ok(client.with_api_key(key)?),
            None => Ok(client),
        }
    }
}

/// Runs a command's conversation with the server to its end.
pub fn converse(conversation: impl Future<Output = Result<ExitCode, Failure>>) -> Result<ExitCode, Failure> {
    converse_with(conversation)?
}

/// The same with whatever comes of it.
pub fn converse_with<T>(conversation: impl Future<Output = T>) -> Result<T, Failure> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(conversation))
}
