-- The highest rate without loss (RFC 2544, section 26.1): trials at rates that halve the interval
-- between the highest good and the lowest bad rate. A longer trial confirms it.

FOLDER = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local tally = dofile(FOLDER .. "tally.lua")

-- The highest good rate is known to so many percent of the line rate.
local RESOLUTION_PERCENT = 1
-- Upper bound of trials.
local TRIALS_MAX = 16

tally.run(function()
    local settings = tally.settings
    local trials = {}
    local function is_good(percent, seconds)
        local trial = tally.trial(percent, seconds)
        trials[#trials + 1] = trial
        return trial.is_good
    end
    local good, bad = 0, nil
    local percent = settings.percent_max
    while #trials < TRIALS_MAX do
        if is_good(percent, settings.trial_seconds) then good = percent else bad = percent end
        if not bad or bad - good <= RESOLUTION_PERCENT then break end
        percent = (good + bad) / 2
    end
    local best
    while good > 0 and #trials < TRIALS_MAX do
        if is_good(good, settings.confirm_seconds) then
            best = trials[#trials]
            break
        end
        good = good - RESOLUTION_PERCENT
    end
    if best then
        tally.say("highest rate without loss: %.2f %% of line rate, %.3f Mframe/s, %.2f Gbit/s of frames, in %d trials",
            best.percent, best.frames_per_s / 1e6, best.gbit_per_s, #trials)
    else
        tally.say("no rate without loss in %d trials", #trials)
    end
    tally.write("throughput.json", trials, best)
end)
