//! What a frame costs on the way through this crate, in cycles: `cargo run --release -p tally-dpdk
//! --example burst_cost`. Needs no privileges. The smallest of many rounds, so that other work on
//! the machine shows as little as possible.

use tally_dpdk::{
    Eal, EalConfig, EalThread, Error, Mbuf, Mempool, MempoolConfig, PortConfig, RingPairConfig,
    cycles, cycles_per_second, free_bulk, ring_pair,
};

const BURST: usize = 32;
const ROUNDS: usize = 20_000;

fn main() -> Result<(), Error> {
    let eal = Eal::init(&EalConfig::no_huge(64))?;
    let config = MempoolConfig {
        cache_frames: 256,
        ..MempoolConfig::default()
    };
    let pool = Mempool::new(&eal, "pool", &config)?;
    let (a, b) = ring_pair(&eal, "pair", &RingPairConfig::default())?;
    let pools = std::slice::from_ref(&pool);
    let mut a = a.configure(&PortConfig::default(), pools)?.start()?;
    let mut b = b.configure(&PortConfig::default(), pools)?.start()?;
    println!(
        "TSC at {} MHz; cycles per frame, bursts of {BURST}",
        cycles_per_second(&eal) / 1_000_000
    );

    let mut frames: Vec<Mbuf> = Vec::with_capacity(BURST);
    for registered in [false, true] {
        let _thread = registered.then(|| EalThread::register(&eal)).transpose()?;
        println!(
            "{}",
            if registered {
                "registered thread"
            } else {
                "thread unknown to the EAL"
            }
        );
        report("alloc_bulk + free_bulk", || {
            pool.alloc_bulk(&mut frames, BURST);
            free_bulk(&mut frames);
        });
        report("alloc_bulk + drop one by one", || {
            pool.alloc_bulk(&mut frames, BURST);
            frames.clear();
        });
        report("alloc one by one + drop one by one", || {
            frames.extend((0..BURST).map_while(|_| pool.alloc()));
            frames.clear();
        });
    }
    let _thread = EalThread::register(&eal)?;
    pool.alloc_bulk(&mut frames, BURST);
    report("tx burst + rx burst over net_ring", || {
        a.tx[0].burst(&mut frames);
        b.rx[0].burst(&mut frames, BURST);
    });
    let mut shared: Vec<Mbuf> = Vec::with_capacity(BURST);
    report("share + drop", || {
        shared.extend(frames.iter().map(Mbuf::share));
        shared.clear();
    });
    let mut sum = 0;
    report("set_len + data_mut + write + read", || {
        for frame in &mut frames {
            let _ = frame.set_len(1086);
            if let Some(data) = frame.data_mut() {
                data[64] = data[64].wrapping_add(1);
            }
            sum += u64::from(frame.data()[64]);
        }
    });
    std::hint::black_box(sum);
    let mut none = Vec::with_capacity(BURST);
    report("rx burst that finds nothing (per burst)", || {
        for _ in 0..BURST {
            a.rx[0].burst(&mut none, BURST);
        }
    });
    Ok(())
}

fn report(what: &str, mut round: impl FnMut()) {
    let mut best = u64::MAX;
    for _ in 0..ROUNDS {
        let start = cycles();
        round();
        best = best.min(cycles() - start);
    }
    println!("  {what:<42} {:6.1}", best as f64 / BURST as f64);
}
