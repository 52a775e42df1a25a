//! Addresses: where they lead, and what they are made of.

use std::fmt::Write as _;

use ureq::http::Uri;

/// Scheme, host and port: who is asked, and who may see the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    secure: bool,
    pub(crate) host: String,
    port: u16,
}

impl Origin {
    /// `None` unless it is a web address.
    pub(crate) fn of(uri: &Uri) -> Option<Self> {
        let secure = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let host = uri.host().filter(|h| !h.is_empty())?.to_ascii_lowercase();
        // Names and passwords in an address are for confusing its reader.
        if uri.authority()?.as_str().contains('@') {
            return None;
        }
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        Some(Origin { secure, host, port })
    }

    pub(crate) fn is_secure(&self) -> bool {
        self.secure
    }
}

/// Where a redirect from `base` leads.
pub(crate) fn resolve(base: &Uri, location: &[u8]) -> Option<String> {
    let location = printable(location);
    let location = location.split('#').next()?;
    let scheme = base.scheme_str()?;
    let authority = base.authority()?;
    let has_scheme = location.split(['/', '?']).next()?.contains(':');
    if has_scheme {
        Some(location.to_owned())
    } else if location.starts_with("//") {
        Some(format!("{scheme}:{location}"))
    } else if location.starts_with('/') {
        Some(format!("{scheme}://{authority}{location}"))
    } else if location.is_empty() || location.starts_with('?') {
        Some(format!("{scheme}://{authority}{}{location}", base.path()))
    } else {
        let folder = base.path().rsplit_once('/')?.0;
        let (path, query) = location.split_at(location.find('?').unwrap_or(location.len()));
        let mut kept: Vec<&str> = folder.split('/').skip(1).collect();
        for segment in path.split('/') {
            match segment {
                "." => {}
                ".." => drop(kept.pop()),
                other => kept.push(other),
            }
        }
        Some(format!("{scheme}://{authority}/{}{query}", kept.join("/")))
    }
}

/// A path of a listing inside an address.
pub(crate) fn encode_path(path: &str) -> String {
    path.split('/').map(encode).collect::<Vec<_>>().join("/")
}

/// One segment of a path: a revision's slashes are no separators.
pub(crate) fn encode(segment: &str) -> String {
    percent(segment.as_bytes(), |b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'~'))
}

/// Servers send addresses with raw spaces and letters beyond ASCII, which no request line takes.
fn printable(bytes: &[u8]) -> String {
    percent(bytes, |b| {
        b.is_ascii_graphic() && !matches!(b, b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}')
    })
}

fn percent(bytes: &[u8], stays: impl Fn(u8) -> bool) -> String {
    bytes.iter().fold(String::new(), |mut out, &b| {
        if stays(b) {
            out.push(b.into());
        } else {
            let _ = write!(out, "%{b:02X}");
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_of_every_form_lead_where_a_browser_would_go() {
        let base: Uri = "https://hub.example:8443/org/name/resolve/main/a.bin?x=1".parse().unwrap();
        for (location, leads) in [
            ("https://cdn.example/b?s=1", "https://cdn.example/b?s=1"),
            ("//cdn.example/b", "https://cdn.example/b"),
            ("/api/cache/b", "https://hub.example:8443/api/cache/b"),
            ("b.bin", "https://hub.example:8443/org/name/resolve/main/b.bin"),
            ("../dev/b.bin?y#z", "https://hub.example:8443/org/name/resolve/dev/b.bin?y"),
            ("../../../../../../b", "https://hub.example:8443/b"),
            ("?y=2", "https://hub.example:8443/org/name/resolve/main/a.bin?y=2"),
            ("/with space/ü", "https://hub.example:8443/with%20space/%C3%BC"),
            ("/a?t=http://x", "https://hub.example:8443/a?t=http://x"),
        ] {
            assert_eq!(resolve(&base, location.as_bytes()).as_deref(), Some(leads), "{location}");
        }
    }

    #[test]
    fn origins_differ_by_scheme_host_and_port() {
        let origin = |text: &str| Origin::of(&text.parse().unwrap());
        assert_eq!(origin("https://Hub.example/a"), origin("https://hub.example:443/b"));
        for other in ["http://hub.example/", "https://hub.example:444/", "https://hub.example.org/"] {
            assert_ne!(origin("https://hub.example/"), origin(other), "{other}");
        }
        for none in ["ftp://a/b", "/a", "https://hub.example@evil.example/"] {
            assert_eq!(origin(none), None, "{none}");
        }
    }

    #[test]
    fn paths_are_encoded_and_revisions_are_one_segment() {
        assert_eq!(encode_path("a b/ü#?.gguf"), "a%20b/%C3%BC%23%3F.gguf");
        assert_eq!(encode("refs/pr/5"), "refs%2Fpr%2F5");
    }
}
