#![allow(missing_docs)]
use ironverbs::sys::{Linux, Sys};
fn main() {
    let mode = std::env::args().nth(1).unwrap_or_default();
    let linux = match std::env::args().nth(2).as_deref() {
        Some("nosys") => Linux::with_roots("/nonexistent", "/dev/infiniband", true),
        Some("nonl") => Linux::with_roots("/sys", "/dev/infiniband", false),
        Some("nothing") => Linux::with_roots("/nonexistent", "/dev/infiniband", false),
        _ => Linux::new(),
    };
    match linux.devices() {
        Err(e) => println!("ERROR {e}"),
        Ok(d) if d.is_empty() => println!("none: {}", linux.why_none()),
        Ok(devices) => {
            for d in devices {
                match mode.as_str() {
                    "list" => println!("{} {:?} {:?}", d.name, d.node, d.usable.as_ref().map_err(|e| e.to_string())),
                    "open" => match linux.open(&d) {
                        Ok(c) => println!("{} open fd {:?} driver {}", d.name, c.raw_fd(), c.driver_id()),
                        Err(e) => println!("{} {e}", d.name),
                    },
                    _ => {
                        println!("{d:#?}");
                        println!("{:#?}", linux.details(&d));
                        println!(
                            "pkey {:?} {:?}",
                            linux.pkey(&d, ironverbs::PortNum::ONE, 0),
                            linux.pkey(&d, ironverbs::PortNum::ONE, 7).map_err(|e| e.to_string())
                        );
                    }
                }
            }
        }
    }
}
