use super::*;
use crate::collective::Priority;

fn sum(name: &str) -> Collective {
    Collective {
        kind: CollectiveKind::Sum,
        dtype: Dtype::F32,
        arithmetic: Arithmetic::Native,
        name: name.into(),
        priority: Priority::FIRST,
        more_follow: false,
    }
}

/// The table after the maximum over all ranks, of which rank `r` brings `records[r]`.
fn table(records: &[Record], payload_bytes: usize) -> Table {
    let workers = records.len() as u16;
    let mut table = Table::new(workers, payload_bytes);
    for index in (0..fragments(workers, payload_bytes)).rev() {
        let mut maximum = vec![0; payload_bytes];
        for (rank, record) in records.iter().enumerate() {
            let mut payload = vec![0xa5; payload_bytes];
            contribute(record, (rank as u16, workers), index, &mut payload);
            let raised = maximum.iter_mut().zip(payload);
            raised.for_each(|(m, p)| *m = p.max(*m));
        }
        assert!(!table.is_complete());
        table.take(index, &maximum);
    }
    assert!(table.is_complete());
    table
}

#[test]
fn every_rank_has_its_place_at_all_sizes_of_payload() {
    let ours = Record::new(&sum("w"), 400);
    let other = Record::new(&sum("w"), 404);
    for workers in [1, 2, 3, 4, 5, 16, 63, 64] {
        for payload_bytes in [64, 128, 1024, 8192] {
            let mut records = vec![ours; workers];
            let check = |records: &[Record]| {
                let table = table(records, payload_bytes);
                table.check((0, workers as u16), &ours, 7, &sum("w"))
            };
            assert_eq!(check(&records), Ok(()));
            for rank in 0..workers {
                records[rank] = other;
                let mismatch = check(&records).unwrap_err();
                if workers > 2 {
                    assert_eq!(mismatch.ranks, Ranks(1 << rank));
                }
                records[rank] = ours;
            }
        }
    }
    assert_eq!(fragments(64, 64), 16);
    assert_eq!(fragments(64, 1024), 1);
}

#[test]
fn without_a_majority_all_are_named() {
    let a = Record::new(&sum("w"), 400);
    let b = Record::new(&sum("w"), 8);
    let c = Record::new(&Collective::barrier("w"), 0);
    let said = |records: &[Record]| {
        let table = table(records, 64);
        let workers = records.len() as u16;
        let mismatch = table.check((0, workers), &records[0], 7, &sum("w"));
        mismatch.unwrap_err().to_string()
    };
    assert_eq!(
        said(&[a, b, a, b, c]),
        "the workers do not agree on collective 7, here a sum of 100 F32 as f32 called \"w\": \
         ranks 0, 2 bring a sum of 100 F32 as f32 called \"w\", \
         ranks 1, 3 bring a sum of 2 F32 as f32 called \"w\", rank 4 brings a barrier called \"w\""
    );
    // Also for who is in the minority.
    assert_eq!(
        said(&[a, b, b]),
        "the workers do not agree on collective 7, here a sum of 100 F32 as f32 called \"w\": \
         rank 0 brings a sum of 100 F32 as f32 called \"w\", all others a sum of 2 F32 as f32 called \"w\""
    );
}

#[test]
fn a_record_has_48_bits_of_elements() {
    let elements = super::super::collective::ELEMENTS_MAX;
    let i8s = Collective {
        dtype: Dtype::I8,
        ..sum("w")
    };
    let record = Record::new(&i8s, elements as usize);
    assert_eq!(record.to_string(), "a sum of 281474976710655 I8");
    assert_eq!(record.elements(), elements);
}

/// D-2 of more than 64 ranks: any one record that differs is found by all, in each field.
#[test]
fn of_more_than_64_ranks_each_field_that_differs_is_found() {
    let ours = Record::new(&sum("w"), 400);
    let root = |root| Collective {
        kind: CollectiveKind::Broadcast { root },
        ..sum("w")
    };
    let others = [
        (Record::new(&sum("w"), 404), "in the number of elements"),
        (Record::new(&sum("x"), 400), "in the name"),
        (
            Record::new(
                &Collective {
                    dtype: Dtype::I32,
                    ..sum("w")
                },
                400,
            ),
            "in the type of the elements",
        ),
        (Record::new(&root(0), 400), "in the kind"),
    ];
    let check =
        |records: &[Record], own: &Record| table(records, 64).check((9, 4096), own, 7, &sum("w"));
    for workers in [65, 500] {
        let mut records = vec![ours; workers];
        assert_eq!(check(&records, &ours), Ok(()));
        for (other, what) in others {
            records[workers - 1] = other;
            for own in [ours, other] {
                let text = check(&records, &own).unwrap_err().to_string();
                assert!(
                    text.contains("others differ from rank 9 ") && text.contains(what),
                    "{text}"
                );
            }
        }
    }
    assert_eq!(fragments(4096, 64), 1);
    let far = Record::new(&root(3001), 400);
    assert_eq!(far.to_string(), "a broadcast of 100 F32 from rank 3001");
    assert!(far != Record::new(&root(3001 - 256), 400));
}
