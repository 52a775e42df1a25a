//! Requests: redirects followed by hand, the token kept to its hub, failures that pass told from those that stay.
//!
//! Large files come from other hosts than the hub, by redirects. A client that sends its headers along shows the
//! token to each of them.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ureq::http::{HeaderMap, Uri, header};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body, Proxy};

use crate::address::{Origin, resolve};
use crate::error::{Error, Result};
use crate::settings::Settings;

const USER_AGENT: &str = concat!("turbospark/", env!("CARGO_PKG_VERSION"));
const MAX_REDIRECTS: usize = 8;

/// Asks the hub and the hosts that it sends us to.
pub(crate) struct Client {
    agent: Agent,
    home: Origin,
    authorization: Option<String>,
    /// Whether anyone ever answered: until then an unknown host is a slip, not an outage.
    answered: AtomicBool,
}

/// An answer with its body still to come.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) host: String,
    body: Body,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Asking again changes nothing.
    Final(Error),
    /// Asking again may help, after this time if the server gave one.
    Passing(Error, Option<Duration>),
}

impl Client {
    pub(crate) fn new(settings: &Settings) -> Result<Self> {
        let unusable = || Error::Settings(format!("{:?} is not the address of a hub", settings.endpoint));
        let home = settings.endpoint.parse().ok().and_then(|uri| Origin::of(&uri)).ok_or_else(unusable)?;
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let agent = Agent::config_builder()
            .tls_config(tls)
            .proxy(settings.proxy.then(Proxy::try_from_env).flatten())
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(USER_AGENT)
            .accept_encoding("identity")
            .timeout_resolve(Some(settings.timeout))
            .timeout_connect(Some(settings.timeout))
            .timeout_recv_response(Some(2 * settings.timeout))
            .timeout_per_read(Some(settings.timeout))
            .build();
        Ok(Client {
            agent: agent.into(),
            home,
            authorization: settings.token.as_ref().map(|t| t.header()),
            answered: AtomicBool::new(false),
        })
    }

    pub(crate) fn has_token(&self) -> bool {
        self.authorization.is_some()
    }

    /// Asks for `url`, or for what it has from byte `from` on.
    pub(crate) fn get(&self, url: &str, from: Option<u64>) -> Result<Reply, Failure> {
        let mut url = url.to_owned();
        let mut at_home = true;
        for _ in 0..=MAX_REDIRECTS {
            let uri: Uri = url.parse().map_err(|_| unfit(&url, "is not an address"))?;
            let origin = Origin::of(&uri).ok_or_else(|| unfit(&url, "is not a web address"))?;
            // Once away the token stays away, also when a stranger sends us back.
            at_home &= origin == self.home;
            if self.home.is_secure() && !origin.is_secure() {
                return Err(unfit(&url, "would leave https"));
            }
            let mut request = self.agent.get(&uri);
            if let Some(token) = self.authorization.as_deref().filter(|_| at_home) {
                request = request.header(header::AUTHORIZATION, token);
            }
            if let Some(from) = from {
                request = request.header(header::RANGE, format!("bytes={from}-"));
            }
            let response = request.call().map_err(|e| self.failure(&origin.host, e))?;
            self.answered.store(true, Ordering::Relaxed);
            let (head, body) = response.into_parts();
            let status = head.status.as_u16();
            let reply = Reply { status, headers: head.headers, host: origin.host, body };
            match status {
                301 | 302 | 303 | 307 | 308 => {
                    let location = reply.headers.get(header::LOCATION).map(|l| l.as_bytes());
                    let next = location.and_then(|l| resolve(&uri, l));
                    url = next.ok_or_else(|| unfit(&url, "redirects to nowhere"))?;
                }
                408 | 429 | 500 | 502 | 503 | 504 => {
                    let wait = reply.wait();
                    let problem = format!("status {status}{}", reply.said());
                    return Err(Failure::Passing(Error::Network { host: reply.host, problem }, wait));
                }
                _ => return Ok(reply),
            }
        }
        Err(unfit(&url, "is the end of too many redirects"))
    }

    fn failure(&self, host: &str, error: ureq::Error) -> Failure {
        use std::io::ErrorKind::{ConnectionRefused, InvalidData, InvalidInput};
        let answered = self.answered.load(Ordering::Relaxed);
        let passes = match &error {
            ureq::Error::HostNotFound => answered,
            // What TLS finds wrong with a certificate comes as invalid data.
            ureq::Error::Io(e) if matches!(e.kind(), InvalidData | InvalidInput) => false,
            ureq::Error::Io(e) if e.kind() == ConnectionRefused => answered,
            ureq::Error::Io(_) | ureq::Error::Timeout(_) | ureq::Error::ConnectionFailed => true,
            ureq::Error::Protocol(_) | ureq::Error::BodyStalled | ureq::Error::ConnectProxyFailed(_) => true,
            _ => false,
        };
        let problem = match &error {
            ureq::Error::HostNotFound => "no such host; is there a network? --offline uses what is here".into(),
            ureq::Error::Timeout(_) => "no answer in time".into(),
            ureq::Error::Rustls(e) => format!("{e}; are the system's root certificates installed?"),
            ureq::Error::Io(e) if e.kind() == InvalidData => format!(
                "{e}; if a proxy between here and there has a certificate of its own, SSL_CERT_FILE names its issuer's"
            ),
            ureq::Error::Io(e) => e.to_string(),
            other => other.to_string(),
        };
        let error = Error::Network { host: host.to_owned(), problem };
        if passes { Failure::Passing(error, None) } else { Failure::Final(error) }
    }
}

fn unfit(url: &str, problem: &str) -> Failure {
    // Addresses of large files are signed: what follows the path is a secret for some minutes.
    let shown = url.split(['?', '#']).next().unwrap_or_default();
    Failure::Final(Error::Network { host: shown.chars().take(200).collect(), problem: problem.into() })
}

impl Reply {
    /// A header that is text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The time after which the server wants to be asked again: of `Retry-After`, or of a limit that is used up, as in
    /// `RateLimit: "resolvers";r=0;t=42`.
    fn wait(&self) -> Option<Duration> {
        let seconds = |text: &str| text.trim().parse().ok().map(Duration::from_secs);
        let limit = self.header("ratelimit").filter(|_| self.status == 429);
        let reset = limit.and_then(|limit| limit.split(';').find_map(|part| part.trim().strip_prefix("t=")));
        self.header("retry-after").and_then(seconds).or_else(|| reset.and_then(seconds))
    }

    /// The body's bytes as they come.
    pub(crate) fn into_reader(self) -> impl Read {
        self.body.into_reader()
    }

    /// A short body whole.
    pub(crate) fn text(self, most: u64) -> Result<String, Failure> {
        let host = self.host;
        let network = |problem: String| Error::Network { host: host.clone(), problem };
        let mut bytes = Vec::new();
        let read = self.body.into_reader().take(most + 1).read_to_end(&mut bytes);
        read.map_err(|e| Failure::Passing(network(e.to_string()), None))?;
        if bytes.len() as u64 > most {
            return Err(Failure::Final(network(format!("an answer of more than {most} bytes"))));
        }
        String::from_utf8(bytes).map_err(|_| Failure::Final(network("an answer that is not text".into())))
    }

    /// The hub's own words for what went wrong, for a message.
    pub(crate) fn said(&self) -> String {
        let words = self.header("x-error-message").unwrap_or_default();
        let words: String = words.chars().filter(|c| !c.is_control()).take(200).collect();
        if words.is_empty() { words } else { format!(" ({words})") }
    }
}
