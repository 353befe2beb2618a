//! What an `Mbuf` promises: freed exactly once, changed only while it is alone, aligned.

mod common;

use std::thread;

use common::{frame, pattern, pool};
use tally_dpdk::{
    EalThread, Error, FRAME_ALIGN_BYTES, HEADROOM_BYTES, Mbuf, Mempool, MempoolConfig, free_bulk,
};

#[test]
fn ownership() {
    let eal = common::eal();
    // First as a stranger to the EAL, then with caches.
    cases(&pool(&eal, "stranger", 255, 32));
    let thread = EalThread::register(&eal).expect("registered");
    assert!(matches!(
        EalThread::register(&eal),
        Err(Error::ThreadRegistered)
    ));
    cases(&pool(&eal, "cached", 255, 32));
    chains(&pool(&eal, "heads", 255, 32), &pool(&eal, "tails", 255, 32));
    chains_on_threads(&eal, &pool(&eal, "both", 1023, 32));
    threads(&eal, &pool(&eal, "threads", 1023, 32));
    drop(thread);

    // What an unregistered thread's cache held is back for all.
    let shared = pool(&eal, "shared", 63, 32);
    let on_thread = || {
        let _thread = EalThread::register(&eal).expect("registered");
        drop((0..20).map(|n| frame(&shared, n)).collect::<Vec<_>>());
    };
    thread::scope(|scope| scope.spawn(on_thread).join()).expect("no panic");
    let mut all = Vec::new();
    assert!(shared.alloc_bulk(&mut all, 63));
    free_bulk(&mut all);
    assert!(shared.is_whole());

    // Frames of two pools, one after the other, one of them shared: each goes to its own.
    let other = pool(&eal, "other", 31, 0);
    let of = |n: usize| if n % 5 < 2 { &other } else { &shared };
    let mut mixed: Vec<_> = (0..40).map(|n| frame(of(n), n)).collect();
    let kept = mixed[7].share();
    free_bulk(&mut mixed);
    assert_eq!((shared.in_use(), other.in_use()), (1, 0));
    assert_eq!(kept.data(), pattern(7));
    drop(kept);
    assert!(shared.is_whole() && other.is_whole());
    drop((shared, other));

    sizes(&eal);
}

fn cases(pool: &Mempool) {
    // Alignment of every frame of the pool, and the pool run dry.
    let mut all = Vec::new();
    assert!(pool.alloc_bulk(&mut all, pool.size() / 2));
    while let Some(frame) = pool.alloc() {
        all.push(frame);
    }
    assert_eq!((all.len(), pool.available()), (pool.size(), 0));
    assert!(!pool.alloc_bulk(&mut all, 1));
    for frame in &all {
        assert_eq!(frame.data().as_ptr().addr() % FRAME_ALIGN_BYTES, 0);
        assert_eq!(frame.headroom(), HEADROOM_BYTES);
        assert_eq!(frame.tailroom(), pool.frame_bytes_max());
        assert!(frame.is_empty() && frame.is_contiguous() && frame.is_unique());
    }
    free_bulk(&mut all);
    assert!(all.is_empty() && pool.is_whole());
    free_bulk(&mut all);

    // Lengths.
    let mut m = frame(pool, 3);
    let bytes = pattern(3);
    assert_eq!(m.data(), bytes);
    assert!(m.trim(10) && m.adj(14));
    assert_eq!(m.data(), &bytes[14..bytes.len() - 10]);
    m.prepend(14).expect("room").copy_from_slice(&bytes[..14]);
    m.append(10)
        .expect("room")
        .copy_from_slice(&bytes[bytes.len() - 10..]);
    assert_eq!(m.data(), bytes);
    assert_eq!(m.len(), bytes.len());
    assert!(!m.trim(bytes.len() + 1) && !m.adj(bytes.len() + 1));
    assert!(m.append(m.tailroom() + 1).is_none());
    assert!(m.append(usize::MAX).is_none());
    assert!(m.prepend(HEADROOM_BYTES + 1).is_none());
    assert!(!m.set_len(pool.frame_bytes_max() + 1));
    assert_eq!(m.data(), bytes);
    assert!(m.set_len(pool.frame_bytes_max()));
    assert_eq!(m.data().len(), pool.frame_bytes_max());
    assert!(m.linearize());
    m.prefetch(64);
    m.prefetch_descriptor();
    drop(m);
    assert!(pool.is_whole());
    assert!(
        pool.alloc_copy(&vec![0; pool.frame_bytes_max() + 1])
            .is_none()
    );
    assert!(pool.is_whole());

    // Shared: nothing can be changed; freed once, in both orders.
    for original_first in [true, false] {
        let mut original = frame(pool, 5);
        let mut copy = original.share();
        assert!(copy.is_same_buffer(&original) && !original.is_unique());
        for m in [&mut original, &mut copy] {
            assert!(m.data_mut().is_none() && m.append(1).is_none() && m.prepend(1).is_none());
            assert!(!m.trim(1) && !m.adj(1) && !m.set_len(1));
            assert_eq!(m.data(), pattern(5));
        }
        let (first, mut second) = if original_first {
            (original, copy)
        } else {
            (copy, original)
        };
        drop(first);
        assert_eq!(pool.in_use(), 1);
        assert!(second.data_mut().is_some());
        drop(second);
        assert!(pool.is_whole());
    }

    // Shares in a bulk, among others.
    let original = frame(pool, 1);
    let mut many: Vec<Mbuf> = (0..70).map(|_| original.share()).collect();
    many.extend((0..30).map(|n| frame(pool, n)));
    free_bulk(&mut many);
    assert_eq!(pool.in_use(), 1);
    assert!(original.is_unique());
    drop(original);
    assert!(pool.is_whole());

    // Many references at once, taken, not taken, or none.
    let original = frame(pool, 9);
    let mut shares = original.share_many(5);
    let mut taken: Vec<_> = shares.by_ref().take(3).collect();
    assert!(taken.iter().all(|copy| copy.is_same_buffer(&original)));
    drop(shares);
    assert_eq!(original.share_many(0).count(), 0);
    taken.extend(original.share_many(2));
    assert_eq!(taken.len(), 5);
    free_bulk(&mut taken);
    assert!(original.is_unique());
    drop(original);
    assert!(pool.is_whole());

    // Forgetting shares can't wrap the count around.
    let original = frame(pool, 1);
    for _ in 0..32_766 {
        std::mem::forget(original.share());
    }
    let one_more = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| original.share()));
    assert!(one_more.is_err());
    let many_more = std::panic::AssertUnwindSafe(|| drop(original.share_many(u16::MAX)));
    assert!(std::panic::catch_unwind(many_more).is_err());
    // Repair the count, to leave the pool whole: as many references as were forgotten. They are
    // read from the one we have, whose type is a pointer.
    for _ in 0..32_766 {
        // SAFETY: each copy stands for one reference that was forgotten above.
        drop(unsafe { std::ptr::read(&raw const original) });
    }
    assert!(original.is_unique());
    drop(original);
    assert!(pool.is_whole());
}

/// The bytes of all segments.
fn whole(frame: &Mbuf) -> Vec<u8> {
    frame.parts().flatten().copied().collect()
}

/// A payload that has lost its headers, as what is kept of a received frame.
fn payload(pool: &Mempool, n: usize) -> Mbuf {
    let mut tail = frame(pool, n);
    assert!(tail.adj(52));
    tail
}

fn chains(heads: &Mempool, tails: &Mempool) {
    let headers = |n: u8| heads.alloc_copy(&[n; 52]).expect("a frame");
    let are_whole = || heads.is_whole() && tails.is_whole();

    // Its bytes are those of both, and what is true of a frame of several segments is true of it.
    let tail = payload(tails, 3);
    let content = [&[7; 52], &pattern(3)[52..]].concat();
    let mut chain = Mbuf::chain(headers(7), tail.share()).expect("a chain");
    assert_eq!((chain.len(), chain.segments()), (content.len(), 2));
    assert!(whole(&chain) == content && chain.data() == [7; 52]);
    assert_eq!(chain.parts().count(), 2);
    assert_eq!(whole(&tail), tail.data());
    assert!(!chain.is_contiguous() && !tail.is_unique());
    assert!(chain.append(1).is_none() && chain.prepend(1).is_none());
    assert!(!chain.trim(1) && !chain.adj(1) && !chain.set_len(1));
    // Its headers are its own, and nothing else of it.
    chain.data_mut().expect("the headers are ours")[0] = 8;
    assert!(!chain.linearize(), "another frame has the payload");
    let copy = heads.copy(&chain).expect("a copy");
    assert!(copy.is_contiguous() && copy.data()[1..] == content[1..] && copy.data()[0] == 8);
    drop(copy);
    drop(chain);
    assert_eq!((heads.in_use(), tails.in_use()), (0, 1));
    assert!(tail.is_unique());

    // The payload lives as long as one of its frames, in both orders, and can be changed when they
    // are gone.
    for tail_first in [true, false] {
        let mut tail = Some(payload(tails, 5));
        let shared = tail.as_ref().map(Mbuf::share).expect("it is there");
        let chain = Mbuf::chain(headers(1), shared).expect("a chain");
        if tail_first {
            tail = None;
        }
        assert_eq!(whole(&chain)[52..], pattern(5)[52..]);
        drop(chain);
        if let Some(mut tail) = tail {
            assert!(tail.data_mut().is_some() && tail.prepend(52).is_some());
        }
        assert_eq!((heads.in_use(), tails.in_use()), (0, 1));
    }
    drop(tail);
    assert!(are_whole());

    // Given up in a bulk, among others, shared and not.
    let tail = payload(tails, 9);
    let mut frames: Vec<_> = (0..60)
        .map(|n| match n % 3 {
            0 => Mbuf::chain(headers(n), tail.share()).expect("a chain"),
            1 => headers(n),
            _ => Mbuf::chain(headers(n), payload(tails, 1)).expect("a chain"),
        })
        .collect();
    let again: Vec<_> = frames.iter().map(Mbuf::share).collect();
    free_bulk(&mut frames);
    assert_eq!((heads.in_use(), tails.in_use()), (60, 21));
    assert_eq!(whole(&again[3])[52..], pattern(9)[52..]);
    drop(again);
    assert_eq!((heads.in_use(), tails.in_use()), (0, 1));
    assert!(tail.is_unique());
    drop(tail);

    // An unshared chain can be made one piece.
    let mut chain = Mbuf::chain(headers(2), payload(tails, 4)).expect("a chain");
    assert!(chain.linearize() && chain.is_contiguous());
    assert_eq!(chain.data()[52..], pattern(4)[52..]);
    drop(chain);
    assert!(are_whole());

    // What cannot be: each side comes back as it was, and is freed once.
    let shared = headers(3);
    let other = shared.share();
    let (shared, tail) = Mbuf::chain(shared, payload(tails, 1)).expect_err("a shared head");
    assert!(other.is_same_buffer(&shared) && tail.is_contiguous());
    let (shared, other) = Mbuf::chain(shared, other).expect_err("a frame with itself");
    drop(other);
    let chain = Mbuf::chain(shared, tail).expect("alone again");
    let (chain, head) = Mbuf::chain(chain, headers(4)).expect_err("a head of two segments");
    let (head, chain) = Mbuf::chain(head, chain).expect_err("a tail of two segments");
    assert_eq!((chain.segments(), head.segments()), (2, 1));
    drop((chain, head));
    assert!(are_whole());

    // Buffers that were part of a chain are like any others.
    for n in 0..heads.size() {
        assert!(headers(n as u8).is_contiguous());
    }
    let all: Vec<_> = (0..tails.size()).map(|n| frame(tails, n)).collect();
    assert!(all.iter().all(|m| m.is_contiguous() && m.is_unique()));
    drop(all);
    assert!(are_whole());
}

/// One payload, and frames with it that end on other threads than it.
fn chains_on_threads(eal: &tally_dpdk::Eal, pool: &Mempool) {
    for _ in 0..20 {
        let tails: Vec<Mbuf> = (0..50).map(|n| payload(pool, n)).collect();
        thread::scope(|scope| {
            for register in [true, false, true, false] {
                let chain = |(n, tail): (usize, &Mbuf)| {
                    let head = pool.alloc_copy(&[n as u8; 52]).expect("a frame");
                    Mbuf::chain(head, tail.share()).expect("a chain")
                };
                let mine: Vec<Mbuf> = tails.iter().enumerate().map(chain).collect();
                scope.spawn(move || {
                    let _thread = register.then(|| EalThread::register(eal).expect("registered"));
                    for (n, frame) in mine.into_iter().enumerate() {
                        let again = frame.share();
                        drop(frame);
                        assert_eq!(whole(&again)[52..], pattern(n)[52..]);
                    }
                });
            }
            drop(tails);
        });
        assert!(pool.is_whole());
    }
}

fn threads(eal: &tally_dpdk::Eal, pool: &Mempool) {
    // Dropped elsewhere: on threads with a cache and without.
    for register in [true, false] {
        let frames: Vec<Mbuf> = (0..200).map(|n| frame(pool, n)).collect();
        let on_thread = move || {
            let _thread = register.then(|| EalThread::register(eal).expect("registered"));
            for (n, frame) in frames.iter().enumerate() {
                assert_eq!(frame.data(), pattern(n));
            }
            drop(frames);
        };
        thread::scope(|scope| scope.spawn(on_thread).join()).expect("no panic");
        assert!(pool.is_whole());
    }
    // Shares of the same frames, shared on and dropped by four threads at once.
    for _ in 0..20 {
        let frames: Vec<Mbuf> = (0..200).map(|n| frame(pool, n)).collect();
        thread::scope(|scope| {
            for _ in 0..4 {
                let mine: Vec<Mbuf> = frames.iter().map(Mbuf::share).collect();
                scope.spawn(move || {
                    for (n, frame) in mine.into_iter().enumerate() {
                        let again = frame.share();
                        drop(frame);
                        assert_eq!(again.data()[..8], (n as u64).to_be_bytes());
                    }
                });
            }
            drop(frames);
        });
        assert!(pool.is_whole());
    }
}

fn sizes(eal: &tally_dpdk::Eal) {
    let make = |name: &str, config: MempoolConfig| Mempool::new(eal, name, &config);
    let small = MempoolConfig {
        frames: 15,
        cache_frames: 0,
        ..MempoolConfig::default()
    };
    let jumbo = make(
        "jumbo",
        MempoolConfig {
            frame_bytes_max: 9_001,
            ..small
        },
    )
    .expect("fits");
    assert_eq!(jumbo.frame_bytes_max(), 9_024);
    cases(
        &make(
            "odd",
            MempoolConfig {
                frames: 100,
                frame_bytes_max: 1_999,
                ..small
            },
        )
        .expect("ok"),
    );
    assert!(matches!(
        make(
            "j2",
            MempoolConfig {
                frame_bytes_max: u16::MAX,
                ..small
            }
        ),
        Err(Error::TooMuch { .. })
    ));
    assert!(matches!(
        make("z", MempoolConfig { frames: 0, ..small }),
        Err(Error::Zero { .. })
    ));
    assert!(matches!(
        make(
            "c",
            MempoolConfig {
                cache_frames: 513,
                ..small
            }
        ),
        Err(Error::TooMuch { .. })
    ));
    assert!(matches!(
        make(
            "big",
            MempoolConfig {
                frames: 1 << 20,
                ..small
            }
        ),
        Err(Error::Call { .. })
    ));
    assert!(matches!(make("a\0b", small), Err(Error::Nul(_))));
    // A name is taken while its pool lives, and while its frames do.
    assert!(make("jumbo", small).is_err());
    let frame = jumbo.alloc().expect("one");
    drop(jumbo);
    assert!(make("jumbo", small).is_err());
    drop(frame);
    let other = make("other", small).expect("a pool");
    drop(other);
    assert!(make("jumbo", small).expect("free again").is_whole());
}
