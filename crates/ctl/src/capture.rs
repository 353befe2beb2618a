//! `tallyctl capture`: frames of a running switch as pcapng, for Wireshark and tshark.

mod pcapng;

use crate::args::{Capture, TargetArguments};
use crate::session::{Failure, Session};
use pcapng::{Packet, Writer};
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, IsTerminal as _, Write};
use std::path::Path;
use tally_api::proto::{CaptureReply, CaptureRequest, CapturedFrame};
use tally_engine::DropReason;

/// Writes what a switch captures until the switch ends it, or the reader is gone.
pub(crate) async fn capture(at: &TargetArguments, asked: &Capture) -> Result<(), Failure> {
    let to_output = asked.write.as_os_str() == "-";
    if to_output && io::stdout().is_terminal() {
        let text = "capture writes pcapng: `tallyctl capture | tshark -r -`, or --write FILE";
        return Err(Failure::Usage(text.into()));
    }
    let mut session = Session::open(at).await?;
    let answer = session.client.control.capture(request(asked)).await;
    let mut frames = answer.map_err(session.failed())?.into_inner();
    let io = |error| Failure::Io {
        what: asked.write.display().to_string(),
        error,
    };
    let mut out = output(&asked.write, to_output).map_err(io)?;
    let (mut taken, mut lost) = (0, 0);
    let mut interfaces = None;
    while let Some(reply) = frames.message().await.map_err(session.failed())? {
        taken += reply.frames.len();
        lost = reply.lost;
        match write(&mut out, &mut interfaces, asked.snaplen, &reply) {
            Ok(()) => {}
            // A reader that has seen enough is no error.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => break,
            Err(error) => return Err(io(error)),
        }
    }
    eprintln!("{taken} frames captured, {lost} lost because they were not taken fast enough");
    Ok(())
}

fn request(asked: &Capture) -> CaptureRequest {
    let reason = asked.drops.clone().flatten();
    CaptureRequest {
        port: asked.port.clone(),
        job: asked.job.map(u32::from),
        drops: asked.drops.is_some(),
        reason,
        snaplen: Some(asked.snaplen),
        count: asked.count,
        seconds: asked.seconds,
    }
}

type Output = Writer<BufWriter<Box<dyn Write>>>;

fn output(path: &Path, to_output: bool) -> io::Result<Output> {
    let out: Box<dyn Write> = if to_output {
        Box::new(io::stdout())
    } else {
        Box::new(File::create(path)?)
    };
    let program = format!("tallyctl {}", tally_program::VERSION);
    Writer::new(BufWriter::new(out), &program)
}

/// Writes a reply; `interfaces` is how many are written, once the first reply has named them.
fn write(
    out: &mut Output,
    interfaces: &mut Option<u32>,
    snaplen: u32,
    reply: &CaptureReply,
) -> io::Result<()> {
    for name in &reply.ports {
        out.interface(name, snaplen)?;
        *interfaces.get_or_insert_default() += 1;
    }
    for frame in &reply.frames {
        let known = interfaces.get_or_insert_default();
        // Ports that were added since.
        while *known <= frame.port && *known <= u32::from(u16::MAX) {
            out.interface(&format!("port {known}"), snaplen)?;
            *known += 1;
        }
        out.packet(&packet(frame))?;
    }
    out.flush()
}

fn packet(frame: &CapturedFrame) -> Packet<'_> {
    Packet {
        interface: frame.port,
        time_ns: frame.time_ns,
        sent: frame.sent,
        comment: frame.drop.as_ref().map(|name| {
            let reason = DropReason::ALL.iter().find(|reason| reason.name() == name);
            let help = reason.map_or("", |reason| reason.help());
            format!("dropped: {name}: {help}")
        }),
        bytes: frame.bytes,
        data: &frame.data,
    }
}
