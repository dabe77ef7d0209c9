//! Serves a run's metrics over HTTP: one page, to be read and nothing else.
//!
//! This much of HTTP/1.1 is written here: an HTTP stack would be the largest dependency of the
//! program for one page without parameters. A connection has one request, which is bounded in size
//! and time, and connections are served one after another: whoever is slow keeps other readers
//! waiting for a few seconds, and never the training.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::exposition::{CONTENT_TYPE, Exposition};

/// Prometheus' requests have some hundred bytes.
const REQUEST_BYTES_MAX: usize = 8 << 10;

/// For a whole request, and again for its answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// After a failure to accept, such as too many open files.
const PAUSE: Duration = Duration::from_millis(200);

/// Serves on this address until the process ends, and returns the address, whose port may have been
/// 0.
pub fn serve(address: SocketAddr, exposition: Exposition) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    let address = listener.local_addr()?;
    std::thread::Builder::new().name("metrics".into()).spawn(move || {
        for stream in listener.incoming() {
            match stream {
                Ok(stream) => {
                    if let Err(error) = answer(stream, &exposition) {
                        tracing::debug!("a reader of the metrics went away: {error}");
                    }
                }
                Err(error) => {
                    tracing::debug!("no connection for metrics: {error}");
                    std::thread::sleep(PAUSE);
                }
            }
        }
    })?;
    Ok(address)
}

fn answer(mut stream: TcpStream, exposition: &Exposition) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let (status, body) = match read_head(&mut stream)? {
        None => ("431 Request Header Fields Too Large", String::new()),
        Some(head) => match request_line(&head) {
            Some(("GET" | "HEAD", "/" | "/metrics")) => ("200 OK", exposition.text()),
            Some(("GET" | "HEAD", _)) => ("404 Not Found", "look at /metrics\n".to_owned()),
            Some(_) => ("405 Method Not Allowed", "only GET\n".to_owned()),
            None => ("400 Bad Request", String::new()),
        },
    };
    let kind = if status == "200 OK" { CONTENT_TYPE } else { "text/plain" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nAllow: GET, HEAD\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    stream.flush()
}

/// Everything before the empty line; none if that is too much.
fn read_head(stream: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let until = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    let mut chunk = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() > REQUEST_BYTES_MAX {
            return Ok(None);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut chunk)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => head.extend(&chunk[..read]),
        }
    }
    Ok(Some(head))
}

/// Method and path, without what is asked of it.
fn request_line(head: &[u8]) -> Option<(&str, &str)> {
    let line = head.split(|&byte| byte == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let path = target.split('?').next()?;
    (version.starts_with("HTTP/1.") && words.next().is_none()).then_some((method, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn start() -> SocketAddr {
        serve("127.0.0.1:0".parse().unwrap(), Exposition::default()).unwrap()
    }

    /// Each sample's name with its value; comments are checked and left out.
    fn samples(body: &str) -> Vec<(String, f64)> {
        let mut samples = Vec::new();
        for line in body.lines() {
            if let Some(comment) = line.strip_prefix("# ") {
                let known = ["TYPE ", "HELP ", "UNIT ", "EOF"];
                assert!(known.iter().any(|word| comment.starts_with(word)), "{line}");
                continue;
            }
            let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
            samples.push((name.to_owned(), value.parse().unwrap_or_else(|_| panic!("{line}"))));
        }
        samples
    }

    #[test]
    fn metrics_are_served_over_a_socket() {
        let answer = ask(start(), b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
        assert!(head.contains(CONTENT_TYPE), "{head}");
        let samples = samples(body);
        assert!(samples.contains(&("annulet_steps_total".to_owned(), 0.0)), "{samples:?}");
        let last = "annulet_step_seconds_bucket{le=\"+Inf\"}".to_owned();
        assert!(samples.contains(&(last, 0.0)), "{samples:?}");
    }

    #[test]
    fn anything_else_is_refused() {
        let address = start();
        let long = [b"GET / HTTP/1.1\r\nX: ".as_slice(), &[b'x'; REQUEST_BYTES_MAX]].concat();
        for (request, status) in [
            (b"GET /secret HTTP/1.1\r\n\r\n".as_slice(), "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"GET\r\n\r\n", "400"),
            (b"\xff\xfe HTTP/1.1\r\n\r\n", "400"),
            (b"GET / SMTP\r\n\r\n", "400"),
        ] {
            let answer = ask(address, request);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        }
        // What is not read any more may reset the connection before the answer is read.
        let mut stream = TcpStream::connect(address).unwrap();
        let _ = stream.write_all(&long);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 200"));
        assert!(ask(address, b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 OK"));
    }
}
