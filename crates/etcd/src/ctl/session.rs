//! The way to the servers: endpoints, TLS, the user, and patience.

use std::time::{Duration, Instant};

use lifecycle::Tasks;
use prost::Message;

use crate::ctl::Failure;
use crate::ctl::args::Global;
use crate::remote::channel::CallError;
use crate::remote::{Channel, RemoteConfig};
use crate::v3::messages::*;
use crate::v3::status::code;

/// How long a server that does not take connections is left alone before it is tried again.
const PAUSE: Duration = Duration::from_millis(100);

/// What a command talks through.
pub struct Session {
    /// What was asked for.
    pub global: Global,
    /// To any of the endpoints.
    pub channel: Channel,
    tasks: Tasks,
}

fn config(global: &Global, endpoints: &[String]) -> Result<RemoteConfig, Failure> {
    if global.cert.is_some() != global.key.is_some() {
        return Err(Failure::arguments("empty string is passed to --key option or --cert option"));
    }
    let own = global.cert.as_deref().zip(global.key.as_deref());
    let tls = global.cacert.as_deref().map(|ca| crate::tls::client(ca, own)).transpose();
    let tls = tls.map_err(|error| Failure::error(telemetry::chain(&error).to_string()))?;
    // Without a scheme it is what the other flags say.
    let scheme = if tls.is_some() { "https://" } else { "http://" };
    let whole = |endpoint: &String| {
        if endpoint.contains("://") { endpoint.clone() } else { format!("{scheme}{endpoint}") }
    };
    Ok(RemoteConfig { endpoints: endpoints.iter().map(whole).collect(), tls })
}

impl Session {
    /// Connects as far as flags can be wrong; servers are asked by the first call.
    pub async fn open(global: Global, tasks: &Tasks) -> Result<Self, Failure> {
        let config = config(&global, &global.endpoints)?;
        let channel = Channel::new(&config, tasks).map_err(|error| Failure::error(error.to_string()))?;
        let session = Self { global, channel, tasks: tasks.clone() };
        session.authenticate(&session.channel).await?;
        Ok(session)
    }

    /// A session with one of the endpoints alone.
    pub async fn at(&self, endpoint: &str) -> Result<Channel, Failure> {
        let config = config(&self.global, &[endpoint.to_owned()])?;
        let channel =
            Channel::new(&config, &self.tasks).map_err(|error| Failure::error(error.to_string()))?;
        self.authenticate(&channel).await?;
        Ok(channel)
    }

    async fn authenticate(&self, channel: &Channel) -> Result<(), Failure> {
        let Some(user) = &self.global.user else { return Ok(()) };
        let (name, password) = match (user.split_once(':'), &self.global.password) {
            (None, Some(password)) => (user.as_str(), password.clone()),
            (Some((name, password)), None) => (name, password.to_owned()),
            (Some(_), Some(_)) => {
                return Err(Failure::arguments("password is given in --user and in --password"));
            }
            (None, None) => (user.as_str(), super::commands::read_password("Password: ")?),
        };
        let request = AuthenticateRequest { name: name.to_owned(), password };
        let answer = call::<AuthenticateResponse>(
            channel,
            "/etcdserverpb.Auth/Authenticate",
            &request,
            self.global.command_timeout,
        );
        match answer.await {
            Ok(answer) => channel.authorize(&answer.token).map_err(Failure::error),
            // Nobody asks who comes.
            Err(failure) if failure.text.contains("authentication is not enabled") => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// A call to any endpoint.
    pub async fn call<M: Message + Default>(
        &self,
        path: &'static str,
        request: &impl Message,
    ) -> Result<M, Failure> {
        call(&self.channel, path, request, self.global.command_timeout).await
    }
}

fn failure(error: &CallError) -> Failure {
    Failure::error(error.status.message.to_string())
}

/// A call that is repeated while nobody takes it, as long as there is time.
pub async fn call<M: Message + Default>(
    channel: &Channel,
    path: &'static str,
    request: &impl Message,
    time: Duration,
) -> Result<M, Failure> {
    let deadline = Instant::now() + time;
    let late = || Failure::error("context deadline exceeded");
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match tokio::time::timeout(left, channel.call(path, request)).await {
            Err(_) => return Err(late()),
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => {
                let again = error.unsent && error.status.code == code::UNAVAILABLE;
                if !again {
                    return Err(failure(&error));
                }
                if Instant::now() + PAUSE >= deadline {
                    return Err(late());
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}
