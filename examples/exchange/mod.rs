//! Trades one line of text with the peer over TCP: what two programs must tell each other before RDMA works.

use std::io::{BufRead, BufReader, Error, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

const PORT: u16 = 18600;

/// How a program ends: the errors are texts for people, so they are printed as such.
pub fn exit(result: std::result::Result<(), Box<dyn std::error::Error>>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The command line: a device, and for a client the server's host.
pub fn arguments(name: &str) -> std::result::Result<(String, Option<String>), String> {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next(), arguments.next(), arguments.next()) {
        (Some(device), host, None) => Ok((device, host)),
        _ => Err(format!("usage: {name} DEVICE [SERVER]")),
    }
}

/// Waits for clients. Dropping it hangs up on those that were not accepted yet.
pub fn listen() -> Result<TcpListener> {
    TcpListener::bind(("0.0.0.0", PORT))
}

/// Connects to `host`, or waits for a client if there is none. The two are not the same program started twice by chance.
pub fn meet(host: Option<&str>) -> Result<TcpStream> {
    let Some(host) = host else {
        return Ok(listen()?.accept()?.0);
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match TcpStream::connect((host, PORT)) {
            Err(_) if Instant::now() < deadline => sleep(Duration::from_millis(50)),
            answer => return answer,
        }
    }
}

/// Says a line and hears one.
pub fn trade(peer: &TcpStream, line: &str) -> Result<String> {
    let mut sender = peer;
    sender.write_all(format!("{line}\n").as_bytes())?;
    let mut answer = String::new();
    if BufReader::with_capacity(1, peer).read_line(&mut answer)? == 0 {
        return Err(Error::other("the peer hung up"));
    }
    Ok(answer.trim_end().to_owned())
}
