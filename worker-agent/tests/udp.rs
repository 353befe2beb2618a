//! The agent over real sockets on the loopback interface, against the endpoint tests' naive switch.
//! Results are compared with sums that share no code with the agent.

#![allow(
    clippy::unwrap_used,
    reason = "this is a test, also outside of its test functions"
)]

mod rig;

use half::{bf16, f16};
use rig::common::switch::Habits;
use rig::{Rig, write_config};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tally_agent::link::loss::Loss;
use tally_agent::tensors::{Tensor, Tensors};
use tally_agent::{AgentError, Arithmetic, Dtype, Op, Options, allreduce};
use tally_schema::agent::report::Report;

impl Rig {
    /// All workers' outcomes.
    fn allreduce(&self, inputs: &[Tensors], options: Options) -> Vec<Result<Tensors, AgentError>> {
        let reported = self.reported(inputs, options).into_iter();
        reported.map(|r| r.map(|(output, _)| output)).collect()
    }

    /// With their reports.
    fn reported(
        &self,
        inputs: &[Tensors],
        options: Options,
    ) -> Vec<Result<(Tensors, Report), AgentError>> {
        let stop = AtomicBool::new(false);
        let run = |rank: u8| {
            let (input, stop) = (inputs[usize::from(rank)].clone(), &stop);
            let config = self.worker(rank);
            let loss = options.loss.map(|l| Loss {
                seed: l.seed + u64::from(rank),
                ..l
            });
            let options = Options { loss, ..options };
            move || {
                allreduce(&config, &options, input, &mut (), stop).inspect(|(_, report)| {
                    assert_eq!(report.fragments, report.from_switch + report.from_ps);
                    assert!(report.latency_us.p50 > 0.0);
                })
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.workers).map(|r| scope.spawn(run(r))).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }
}

fn gradients(folder: &str, workers: u8) -> Vec<Tensors> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("gradients")
        .join(folder);
    (0..workers)
        .map(|rank| Tensors::read(&folder.join(format!("rank{rank}.safetensors"))).unwrap())
        .collect()
}

/// A tensor's elements, which f32 has exactly.
fn floats(tensor: &Tensor) -> Vec<f32> {
    let halves = || tensor.bytes.as_chunks::<2>().0.iter().copied();
    match tensor.dtype {
        Dtype::F32 => {
            let words = tensor.bytes.as_chunks().0.iter();
            words.map(|b| f32::from_ne_bytes(*b)).collect()
        }
        Dtype::F16 => halves().map(|b| f16::from_ne_bytes(b).to_f32()).collect(),
        Dtype::Bf16 => halves().map(|b| bf16::from_ne_bytes(b).to_f32()).collect(),
        _ => panic!("{} is of integers", tensor.name),
    }
}

/// The same in the tensor's own type.
fn narrowed(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    let values = values.iter().copied();
    match dtype {
        Dtype::F16 => values
            .flat_map(|v| f16::from_f32(v).to_ne_bytes())
            .collect(),
        Dtype::Bf16 => values
            .flat_map(|v| bf16::from_f32(v).to_ne_bytes())
            .collect(),
        _ => values.flat_map(f32::to_ne_bytes).collect(),
    }
}

fn ints(tensor: &Tensor) -> Vec<i32> {
    let words = tensor.bytes.as_chunks().0.iter();
    words.map(|b| i32::from_ne_bytes(*b)).collect()
}

/// All ranks' tensors of the same name.
fn by_tensor(inputs: &[Tensors]) -> Vec<Vec<&Tensor>> {
    let all = |n| inputs.iter().map(|t: &Tensors| &t.tensors[n]).collect();
    (0..inputs[0].tensors.len()).map(all).collect()
}

/// Section 8 with exact arithmetic: integers below 2^31 are exact in f64.
fn fixed_sum(tensors: &[&Tensor], per_fragment: usize) -> Vec<f32> {
    let all: Vec<_> = tensors.iter().map(|t| floats(t)).collect();
    let c = (all.len() as u32).next_power_of_two().trailing_zeros() as i32;
    let mut sum = Vec::new();
    let len = all[0].len();
    for start in (0..len).step_by(per_fragment) {
        let range = start..len.min(start + per_fragment);
        let exponent = |v: &f32| (v.to_bits() >> 23 & 0xff) as i32;
        let here = all.iter().flat_map(|values| &values[range.clone()]);
        let e = here.map(exponent).max().unwrap();
        let s = 31 - c - (e.max(1) - 126);
        for i in range {
            let q = |values: &Vec<f32>| (f64::from(values[i]) * 2f64.powi(s)).round_ties_even();
            let total: f64 = all.iter().map(q).sum();
            sum.push((f64::from(total as f32) * 2f64.powi(-s)) as f32);
        }
    }
    sum
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn fixed_point_is_exact_under_loss() {
    let habits = Habits {
        collide: 200,
        preempt: 200,
        mark: 100,
    };
    let rig = Rig::new(3, habits, true);
    let inputs = gradients("mixed", 3);
    let options = Options {
        op: Op::Mean,
        loss: Some(Loss::of_each(0.05, 40)),
        ..Options::default()
    };
    let mean = |tensors: &Vec<&Tensor>| match tensors[0].dtype {
        Dtype::I32 => {
            let all: Vec<_> = tensors.iter().map(|t| ints(t)).collect();
            let mean = |i: usize| all.iter().map(|values| values[i]).sum::<i32>() / 3;
            let each = (0..all[0].len()).map(mean);
            each.flat_map(i32::to_ne_bytes).collect()
        }
        dtype => {
            let sum = fixed_sum(tensors, 64);
            narrowed(dtype, &sum.iter().map(|v| v / 3.0).collect::<Vec<_>>())
        }
    };
    let want: Vec<Vec<u8>> = by_tensor(&inputs).iter().map(mean).collect();
    for output in rig.allreduce(&inputs, options) {
        let output = output.unwrap();
        for ((got, want), input) in output.tensors.iter().zip(&want).zip(&inputs[0].tensors) {
            assert_eq!(&got.bytes, want, "{}", got.name);
            let tensor = |t: &Tensor| (t.name.clone(), t.dtype, t.shape.clone());
            assert_eq!(tensor(got), tensor(input));
        }
    }
}

#[test]
fn native_is_the_fold_in_rank_order_over_several_rounds() {
    let habits = Habits {
        collide: 300,
        preempt: 300,
        mark: 0,
    };
    let rig = Rig::new(4, habits, true);
    let inputs = gradients("digits/step40", 4);
    let options = Options {
        arithmetic: Arithmetic::Native,
        rounds: 3,
        loss: Some(Loss::of_each(0.02, 7)),
        ..Options::default()
    };
    let fold = |tensors: &Vec<&Tensor>| {
        let all = tensors.iter().map(|t| floats(t));
        let add =
            |sum: Vec<f32>, next: Vec<f32>| sum.iter().zip(&next).map(|(a, b)| a + b).collect();
        all.reduce(add).unwrap()
    };
    let want: Vec<_> = by_tensor(&inputs).iter().map(fold).collect();
    let (mut sent_lost, mut received_lost) = (0, 0);
    for reported in rig.reported(&inputs, options) {
        let (output, report) = reported.unwrap();
        for (got, want) in output.tensors.iter().zip(&want) {
            assert_eq!(bits(&floats(got)), bits(want), "{}", got.name);
        }
        // The injector, which knows nothing of the protocol's state, and the worker count the same.
        let elements = report.loss.unwrap().elements;
        let again = report.retransmissions;
        let again = again.nack + report.results_resent;
        assert_eq!(elements.sent, report.fragments + again);
        assert!(elements.received >= report.fragments);
        sent_lost += elements.sent_lost;
        received_lost += elements.received_lost;
    }
    // A single rank sends about 200 datagrams and can lose none of them.
    assert!(sent_lost > 0 && received_lost > 0);
}

#[test]
fn pauses_before_rounds_count_and_priorities_follow_from_them() {
    let compute = Duration::from_millis(80);
    let rig = Rig::new(2, Habits::default(), true);
    let inputs = gradients("digits/step40", 2);
    let options = Options {
        rounds: 5,
        compute,
        ..Options::default()
    };
    let sums = by_tensor(&inputs);
    let want: Vec<_> = sums
        .iter()
        .map(|tensors| bits(&fixed_sum(tensors, 64)))
        .collect();
    for reported in rig.reported(&inputs, options) {
        let (output, report) = reported.unwrap();
        let got: Vec<_> = output.tensors.iter().map(|t| bits(&floats(t))).collect();
        assert_eq!(got, want);
        assert!(report.job_seconds >= 5.0 * 0.08, "{}", report.job_seconds);
        // The first contribution comes after the first pause.
        let pause = report.job_seconds - report.seconds;
        assert!((0.079..0.3).contains(&pause), "{pause}");
        let (least, most) = (report.priority_min.unwrap(), report.priority_max.unwrap());
        assert_eq!(
            least.min(128 - 24),
            least,
            "of the first round's last layer, or less"
        );
        // 80 ms and some to go: at least as urgent as 1 s at 1 : 32 would be.
        assert!(most > 128, "{most}");
        let c = report.congestion;
        assert_eq!((c.rounds_marked, c.rounds_collided), (0, 0));
        assert_eq!((c.link_window, c.aggregation_window), (20, 20));
    }
}

#[test]
fn infinities_and_nan_are_the_whole_fragments_nan() {
    let rig = Rig::new(2, Habits::default(), true);
    let mut inputs: Vec<_> = (0..2)
        .map(|r| Tensors::synthetic(3, r, 1000, Dtype::F32))
        .collect();
    let mut put = |value: f32| {
        let at = &mut inputs[1].tensors[0].bytes[400..404];
        at.copy_from_slice(&value.to_ne_bytes());
        inputs.clone()
    };
    let (infinite, finite) = (put(f32::NEG_INFINITY), put(0.0));
    let want = fixed_sum(&by_tensor(&finite)[0], 64);
    for output in rig.allreduce(&infinite, Options::default()) {
        let got = floats(&output.unwrap().tensors[0]);
        assert!(got[64..128].iter().all(|v| v.to_bits() == 0x7fc0_0000));
        assert_eq!(bits(&got[..64]), bits(&want[..64]));
        assert_eq!(bits(&got[128..]), bits(&want[128..]));
    }
}

#[test]
fn an_overflow_names_the_tensor() {
    let rig = Rig::new(2, Habits::default(), true);
    let mut inputs = gradients("mixed", 2);
    for tensor in inputs.iter_mut().flat_map(|t| &mut t.tensors) {
        if tensor.name == "shard.examples" {
            tensor.bytes = i32::MAX.to_ne_bytes().into();
        }
    }
    for output in rig.allreduce(&inputs, Options::default()) {
        let error = output.unwrap_err();
        assert_eq!(error.exit_code(), 7);
        assert!(error.to_string().contains("shard.examples"), "{error}");
    }
}

/// What every rank is told when rank 2 of 3 brings `change`d tensors, of which all bring the first
/// `tensors` only.
#[track_caller]
fn differs(tensors: usize, change: impl Fn(&mut Tensors), which: usize) {
    let rig = Rig::new(3, Habits::default(), true);
    let mut inputs = gradients("digits/step40", 3);
    inputs
        .iter_mut()
        .for_each(|input| input.tensors.truncate(tensors));
    change(&mut inputs[2]);
    let options = Options {
        arithmetic: Arithmetic::Native,
        ..Options::default()
    };
    for output in rig.allreduce(&inputs, options) {
        let error = output.unwrap_err();
        assert_eq!(error.exit_code(), 6, "{error}");
        let said = error.to_string();
        let which = format!("do not agree on collective {which}, here ");
        assert!(said.contains(&which), "{said}");
        assert!(said.contains("rank 2 brings "), "{said}");
    }
}

#[test]
fn tensors_that_differ_are_named_at_every_rank() {
    differs(usize::MAX, |it| it.tensors[1].name.push('x'), 1);
    differs(usize::MAX, |it| it.tensors[1].shape.push(1), 1);
    differs(usize::MAX, |it| it.tensors.truncate(5), 0);
    differs(usize::MAX, |it| it.tensors.clear(), 0);
}

/// A rank finds the difference when it has all results, and all have been told to leave.
#[test]
fn a_last_tensor_that_differs_is_no_sum() {
    differs(1, |it| it.tensors[0].name.push('x'), 0);
}

#[test]
fn nothing_is_summed_at_once() {
    let rig = Rig::new(2, Habits::default(), true);
    let nothing = vec![Tensors::default(); 2];
    let options = Options {
        rounds: 3,
        ..Options::default()
    };
    for reported in rig.reported(&nothing, options) {
        let (output, report) = reported.unwrap();
        assert_eq!(output, Tensors::default());
        assert_eq!((report.elements, report.round_seconds.len()), (0, 3));
    }
}

/// How long a worker waits for others that come, when this machine is busy.
const PATIENT_MS: u64 = 20_000;

struct Cli {
    rig: Rig,
    folder: tempfile::TempDir,
    join_ms: u64,
}

impl Cli {
    fn new(with_ps: bool, join_ms: u64) -> Self {
        Self {
            rig: Rig::new(2, Habits::default(), with_ps),
            folder: tempfile::tempdir().unwrap(),
            join_ms,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, rank: u8, arguments: &[&str]) -> Command {
        let config = self.path(&format!("w{rank}.json"));
        write_config(&config, &self.rig.worker_json(rank, self.join_ms));
        let mut command = Command::new(env!("CARGO_BIN_EXE_tally-agent"));
        command
            .arg("allreduce")
            .arg("--config")
            .arg(config)
            .args(arguments);
        command
            .arg("--output")
            .arg(self.path(&format!("out{rank}.safetensors")));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

#[track_caller]
fn fails_with(output: &Output, code: i32, text: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(stderr.contains(text), "{stderr}");
}

#[test]
fn the_program_sums_files_and_reports() {
    let cli = Cli::new(true, PATIENT_MS);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("gradients/mixed");
    let start = |rank: u8| {
        let input = folder.join(format!("rank{rank}.safetensors"));
        let report = cli.path(&format!("report{rank}.json"));
        let (input, report) = (input.to_str().unwrap(), report.to_str().unwrap());
        let arguments = ["--input", input, "--report", report, "--loss", "0.01"];
        cli.command(rank, &arguments).spawn().unwrap()
    };
    for child in [start(0), start(1)] {
        let output = child.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            said.contains("losing 1% of all datagrams on purpose"),
            "{said}"
        );
        assert!(said.contains("seed 1"), "{said}");
    }
    let read = |name| Tensors::read(&cli.path(name)).unwrap();
    let (a, b) = (read("out0.safetensors"), read("out1.safetensors"));
    assert!(a == b, "the outputs differ");
    let mut report = std::fs::read(cli.path("report0.json")).unwrap();
    let report = simd_json::to_borrowed_value(&mut report)
        .unwrap()
        .to_string();
    for key in [
        "goodput_gbit_per_s",
        "\"p99.9\"",
        "retransmissions",
        "from_ps",
        "typical_us",
    ] {
        assert!(report.contains(key), "{key} in {report}");
    }
}

#[test]
fn the_program_tells_classes_of_errors_apart() {
    let cli = Cli::new(false, 1000);
    let run = |arguments: &[&str]| cli.command(0, arguments).output().unwrap();
    fails_with(&run(&[]), 2, "--input");
    fails_with(
        &run(&["--input", "/nowhere.safetensors"]),
        3,
        "/nowhere.safetensors: No such file",
    );
    let synthetic = ["--synthetic", "--elements", "1K"];
    let bad_rank = [&synthetic[..], &["--rank", "2"]].concat();
    fails_with(
        &run(&bad_rank),
        2,
        "job.rank: found 2, expected 0 to 1, as there are 2 workers",
    );
    let alone = run(&synthetic);
    fails_with(
        &alone,
        5,
        "cannot join job 7 as rank 0: the job did not start within 1s: \
        rank 1 and the parameter server are missing",
    );
    let config = cli.path("bad.json");
    std::fs::write(&config, "{\"swich\": 1}").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tally-agent"));
    let output = command
        .args(["ps", "--config"])
        .arg(&config)
        .output()
        .unwrap();
    fails_with(
        &output,
        2,
        "bad.json: swich: unknown field `swich`, expected one of",
    );
    assert!(!cli.path("out0.safetensors").exists());
}

#[test]
fn an_interrupted_program_tells_the_others_and_leaves_no_output() {
    use std::io::{BufRead, BufReader};
    let cli = Cli::new(true, PATIENT_MS);
    // Enough that it is still busy when the signal comes.
    let arguments = ["--synthetic", "--elements", "1M", "--repeat", "100000"];
    let start = |rank| cli.command(rank, &arguments).spawn().unwrap();
    let (mut first, second) = (start(0), start(1));
    let mut log = BufReader::new(first.stderr.take().unwrap());
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut line = String::new();
    while !line.contains("running") {
        assert!(Instant::now() < deadline);
        line.clear();
        assert!(log.read_line(&mut line).unwrap() > 0, "it ended");
    }
    let pid = nix::unistd::Pid::from_raw(i32::try_from(first.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    assert_eq!(first.wait().unwrap().code(), Some(130));
    let output = second.wait_with_output().unwrap();
    fails_with(&output, 6, "rank 0 left the job because it was interrupted");
    let left: Vec<_> = std::fs::read_dir(cli.folder.path())
        .unwrap()
        .flatten()
        .collect();
    assert!(
        left.iter()
            .all(|f| !f.file_name().to_string_lossy().contains("out")),
        "{left:?}"
    );
}
