// SPDX-License-Identifier: Apache-2.0
//
// Decision on a frame, by the comparisons of its entries: the table of PROTOCOL.md, section 6,
// column `esa`. Combinational.
//
// The rows have the order of Aggregator::contribution, result, remind and probe, for one way a set
// and without space for contributions out of order. Tags at the rows are those of PROTOCOL.md. All
// inputs and outputs belong to one frame; tally_slots makes the inputs and executes the outputs.

`default_nettype none

module tally_decide (
    input  wire logic       valid,
    input  wire logic [2:0] act,
    // Of the frame and its fragment.
    input  wire logic       resend,
    input  wire logic       finished,     // its result is in the ring
    input  wire logic       old,          // older than all fragments of the ring
    input  wire logic       noted,        // its rank's contribution went to the PS
    input  wire logic       any_noted,    // any rank's contribution did
    // Of the fragment's slot.
    input  wire logic       occupied,
    input  wire logic       hit,          // by its own fragment
    input  wire logic       seen,         // its rank's contribution is in it
    input  wire logic       split,        // a part of its fragment went to the PS (S-8)
    input  wire logic       same_element,
    input  wire logic       is_next,      // this rank is next in its sum; 1 if unordered
    input  wire logic       is_first,     // a sum may begin with this rank
    input  wire logic       completes,    // with this rank, it has all ranks
    // With this rank (of a PROBE: without it), it has all ranks that did not go to the PS.
    input  wire logic       is_rest,
    input  wire logic       is_rest_alone, // this is the only rank that did not go to the PS
    input  wire logic       past,         // of another fragment, which has its result (S-5)
    input  wire logic       higher,       // of another fragment, of lower priority
    input  wire logic       same_note,    // of another fragment, whose note has the same row
    // Changes.
    output logic            reaches,      // the job has reached this fragment
    output logic            joins,        // the slot gets the contribution
    output logic            takes,        // the slot is allocated to the fragment
    output logic            frees,        // the slot becomes free
    output logic            halves,       // the slot's priority is halved
    output logic            raises,       // the slot's priority becomes at least the frame's
    output logic            splits,       // the slot's fragment becomes split
    output logic            split_taken,  // an allocated slot is split from the beginning
    output logic            notes_rank,   // note that the rank went to the PS
    output logic            notes_slot,   // and that the slot's ranks did
    output logic            notes_victim, // and that the evicted fragment's ranks did
    output logic            keeps,        // the result goes into the ring
    output logic      [2:0] from,         // payload of the output frame, and its headers
    output logic      [3:0] head,
    output logic            evicts_too,   // a second output frame: the slot
    output logic      [7:0] why,          // flags of the frame to the PS
    output logic      [1:0] write,        // to the slot's payload
    // Counters.
    output logic            results,
    output logic            results_from_ps,
    output logic            results_from_workers,
    output logic            results_again,
    output logic            preemptions,
    output logic            abandoned,
    output logic            followed,
    output logic            collisions,
    output logic            resends_to_ps,
    output logic            held_full,
    output logic            slots_taken,
    output logic            reminds,
    output logic            nacks,
    output logic            probes,
    output logic            probe_nacks,
    output logic            late,
    output logic            duplicate,
    output logic            mismatch
);

  wire open = !finished && !old;

  always_comb begin
    {reaches, joins, takes, frees, halves, raises, splits, split_taken} = '0;
    {notes_rank, notes_slot, notes_victim, keeps, evicts_too} = '0;
    {results, results_from_ps, results_from_workers, results_again, preemptions, abandoned, followed, collisions, resends_to_ps} = '0;
    {held_full, slots_taken, reminds, nacks, probes, probe_nacks, late, duplicate, mismatch} = '0;
    from = tally_pkg::FROM_NOTHING;
    head = tally_pkg::HEAD_PASS;
    why = 8'd0;
    write = tally_pkg::WRITE_NOTHING;

    if (valid) case (act)
      tally_pkg::ACT_PASS_THROUGH: from = tally_pkg::FROM_RAW;

      tally_pkg::ACT_DATA: begin
        reaches = open;
        if (finished && resend) begin // W-4
          results_again = 1'b1;
          from = tally_pkg::FROM_RING;
          head = tally_pkg::HEAD_AGAIN;
        end else if (!open) late = 1'b1;
        else if (hit) begin
          if (seen) duplicate = 1'b1;
          else if (split && noted) begin // S-8
            if (resend) begin
              resends_to_ps = 1'b1;
              from = tally_pkg::FROM_ARRIVAL;
            end else duplicate = 1'b1;
          end else if (!same_element) mismatch = 1'b1;
          else if (!is_next) begin // S-1: no space to hold it
            held_full = 1'b1;
            raises = 1'b1;
            splits = 1'b1;
            notes_rank = 1'b1;
            from = tally_pkg::FROM_ARRIVAL;
            if (is_rest) begin
              followed = 1'b1;
              notes_slot = 1'b1;
              frees = 1'b1;
              evicts_too = 1'b1;
            end
          end else begin
            joins = 1'b1;
            raises = 1'b1;
            if (split ? is_rest : completes) begin
              frees = 1'b1;
              from = tally_pkg::FROM_SUM;
              if (split) begin // S-8
                followed = 1'b1;
                notes_rank = 1'b1;
                notes_slot = 1'b1;
                head = tally_pkg::HEAD_FOLLOW;
              end else begin
                results = 1'b1;
                keeps = 1'b1;
                head = tally_pkg::HEAD_RESULT;
              end
            end else write = tally_pkg::WRITE_SUM;
          end
        end else if (resend && any_noted) begin // S-8; otherwise a RESEND is like any other DATA
          resends_to_ps = 1'b1;
          notes_rank = 1'b1;
          from = tally_pkg::FROM_ARRIVAL;
        end else if (noted) duplicate = 1'b1;
        else if (occupied && !past && !higher) begin
          collisions = 1'b1;
          resends_to_ps = resend;
          halves = 1'b1;
          notes_rank = 1'b1;
          from = tally_pkg::FROM_ARRIVAL;
          why = tally_pkg::FLAG_COLLISION;
        end else begin
          slots_taken = 1'b1;
          abandoned = occupied && past; // S-5
          preemptions = occupied && !past;
          notes_victim = preemptions;
          // The victim's note replaces this fragment's note if they share a row.
          split_taken = any_noted && !(preemptions && same_note);
          if (!is_first || (split_taken && is_rest_alone)) begin
            // Send it to the PS: there is no space to hold it, or all other ranks are there.
            held_full = !is_first;
            joins = is_first;
            followed = is_first;
            notes_rank = 1'b1;
            frees = 1'b1;
            from = tally_pkg::FROM_ARRIVAL;
            evicts_too = preemptions;
          end else begin
            joins = 1'b1;
            takes = 1'b1;
            write = tally_pkg::WRITE_ARRIVAL;
            if (preemptions) begin
              from = tally_pkg::FROM_SLOT;
              head = tally_pkg::HEAD_EVICT;
            end
          end
          why = head == tally_pkg::HEAD_EVICT || evicts_too ? tally_pkg::FLAG_COLLISION : 8'd0;
        end
      end

      tally_pkg::ACT_PS_RESULT, tally_pkg::ACT_WORKER_RESULT: begin // S-2, S-4
        reaches = open;
        late = !open;
        if (open) begin
          results_from_ps = act == tally_pkg::ACT_PS_RESULT;
          results_from_workers = !results_from_ps;
          frees = hit;
          keeps = 1'b1;
          from = tally_pkg::FROM_ARRIVAL;
          head = results_from_ps ? tally_pkg::HEAD_PS_RESULT : tally_pkg::HEAD_WORKER_RESULT;
        end
      end

      tally_pkg::ACT_REMIND: begin // S-3
        reminds = 1'b1;
        from = tally_pkg::FROM_ARRIVAL; // which has no payload
        head = tally_pkg::HEAD_NOT_HERE;
        why = open ? 8'd0 : tally_pkg::FLAG_FINISHED;
        if (open && hit) begin
          notes_slot = 1'b1;
          frees = 1'b1;
          from = tally_pkg::FROM_SLOT;
          head = tally_pkg::HEAD_EVICT;
        end
      end

      tally_pkg::ACT_NACK: begin // S-4
        nacks = 1'b1;
        from = tally_pkg::FROM_ARRIVAL;
        head = tally_pkg::HEAD_NACK;
      end

      tally_pkg::ACT_PROBE: begin // S-7
        probes = 1'b1;
        from = tally_pkg::FROM_ARRIVAL; // which has no payload
        if (finished) begin
          results_again = 1'b1;
          from = tally_pkg::FROM_RING;
          head = tally_pkg::HEAD_AGAIN;
        end else if (old) begin
          late = 1'b1;
          from = tally_pkg::FROM_NOTHING;
        end else if (any_noted && !(hit && !is_rest)) head = tally_pkg::HEAD_PROBE;
        else begin
          probe_nacks = 1'b1;
          head = tally_pkg::HEAD_ASK;
        end
      end

      default: ;
    endcase
  end

endmodule

`default_nettype wire
