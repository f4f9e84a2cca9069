//! The arguments and the runtime of the commands that call a server.

use std::future::Future;
use std::process::ExitCode;

use serde::Serialize;
use whimbrel_client::{Client, ClientError};

use super::CliError;
use super::output::{print_answer, print_line};

#[derive(Debug, clap::Args)]
pub struct ConnectArgs {
    /// The URL of the server
    #[arg(long, value_name = "URL", env = "WHIMBREL_SERVER", default_value = "http://127.0.0.1:7600")]
    server: String,
    /// The API key
    #[arg(long, value_name = "SECRET", env = "WHIMBREL_KEY", hide_env_values = true)]
    key: Option<String>,
    /// Print JSON for programs
    #[arg(long)]
    pub json: bool,
}

impl ConnectArgs {
    pub fn client(&self) -> Result<Client, CliError> {
        let client = Client::new(&self.server)?;
        match self.key.as_deref().filter(|key| !key.is_empty()) {
            Some(key) => Ok(client.with_api_key(key)?),
            None => Ok(client),
        }
    }

    /// Calls the server and prints its answer: as JSON, or as the text that `text` makes of it.
    pub fn show<T: Serialize, E>(
        &self,
        call: impl AsyncFnOnce(&Client) -> Result<T, E>,
        text: impl FnOnce(&T) -> String,
    ) -> Result<ExitCode, CliError>
    where
        CliError: From<E>,
    {
        let client = self.client()?;
        let answer = converse_with(call(&client))??;
        print_answer(&answer, self.json, text)
    }

    /// Makes a call without an answer, and prints the sentence. Programs get the exit code only.
    pub fn finish(
        &self,
        call: impl AsyncFnOnce(&Client) -> Result<(), ClientError>,
        sentence: &str,
    ) -> Result<ExitCode, CliError> {
        let client = self.client()?;
        converse_with(call(&client))??;
        if !self.json {
            print_line(sentence)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Whether the server has what was requested. `unknown` is the code of its answer if not.
pub fn exists<T>(answer: Result<T, ClientError>, unknown: &str) -> Result<bool, ClientError> {
    match answer {
        Ok(_) => Ok(true),
        Err(error) if error.code() == Some(unknown) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Runs the requests of a command on a runtime.
pub fn converse(conversation: impl Future<Output = Result<ExitCode, CliError>>) -> Result<ExitCode, CliError> {
    converse_with(conversation)?
}

/// Like [`converse`], with any output.
pub fn converse_with<T>(conversation: impl Future<Output = T>) -> Result<T, CliError> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(conversation))
}
