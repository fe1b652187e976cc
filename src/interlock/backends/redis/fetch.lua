if fetches > 0 then
  fetched = call('HMGET', D, unpack(A, base + 1, base + fetches))
  for j = 1, #fetched do
    local e, k = fetched[j], A[base + j]
    if e and byte(e, 17) % 4 >= 2 then
      fetched[j] = e .. call('HGET', KEYS[7], pack('>I4', #k) .. k .. sub(e, 1, 8))
    end
  end
end
