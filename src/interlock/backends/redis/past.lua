-- The version of a key that a snapshot shows: false where there was none, nil where it was overwritten quietly.
local function shown(k, e, snapshot)
  if e and from('>I8', e) <= snapshot then return e end
  local p = pack('>I4', #k) .. k
  local edge = p .. pack('>I8', snapshot + 1)
  local next_ = call('ZRANGEBYLEX', KEYS[3], '[' .. edge, '(' .. p .. '\255', 'LIMIT', 0, 1)[1]
  next_ = next_ and sub(next_, #p + 1) or e
  if next_ and byte(next_, 17) % 32 >= 16 then return nil end
  local found = call('ZREVRANGEBYLEX', KEYS[3], '(' .. edge, '[' .. p, 'LIMIT', 0, 1)[1]
  return found and sub(found, #p + 1) or false
end
local function whole(k, e)
  if e and byte(e, 17) % 4 >= 2 then return e .. call('HGET', KEYS[7], pack('>I4', #k) .. k .. sub(e, 1, 8)) end
  return e
end
local function clock(head)
  local time = call('TIME')
  return math.max(time[1] * 1000000 + time[2], (from('>I8', head, 9)))
end
